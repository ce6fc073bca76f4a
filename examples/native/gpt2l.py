"""A small GPT-2: embeddings, two blocks, and the embedding again for the logits, which lie over tp."""

import numpy as np
from block import LAYOUTS, apply, mesh, random_block

import meshweave as mw


@mw.jit(
    mesh=mesh,
    in_layouts=("[dp, _]", "[_, _]", "[_, _]", [LAYOUTS, LAYOUTS]),
    out_layouts="[dp, _, tp]",
)
def gpt2l(tokens, words, places, blocks):
    """Return the logits of the next token.

    tokens: batch x positions, i32. words: vocabulary x d. places: positions x d.
    """
    x = mw.take(words, tokens, axis=0) + places
    for parameters in blocks:
        x = apply(x, parameters)
    return x @ words.T


if __name__ == "__main__":
    rng = np.random.default_rng(0)
    tokens = rng.integers(0, 256, (4, 64)).astype(np.int32)
    words, places = (rng.standard_normal((n, 128)).astype(np.float32) for n in (256, 64))
    print(gpt2l(tokens, words, places, [random_block(rng), random_block(rng)]))
    print(gpt2l.explain())
