"""Generate with a small GPT-2: heads over two ranks, keys and values of earlier tokens kept in place."""

import math

import numpy as np

import meshweave as mw

LAYERS, HEADS, WIDTH, WORDS, LENGTH = 2, 4, 32, 50, 24
EACH = WIDTH // HEADS
PLACES = {"qkv": "[_, _, tp, _]", "out": "[tp, _, _]", "up": "[_, tp]", "down": "[tp, _]"}
CACHE = "[_, tp, _, _]"  # [keys or values, heads, places, width of a head]


def drawn(key):
    """Draw the weights of a model. The key alone decides, not the mesh."""
    sizes = {"qkv": (WIDTH, 3, HEADS, EACH), "out": (HEADS, EACH, WIDTH), "up": (WIDTH, 4 * WIDTH),
             "down": (4 * WIDTH, WIDTH)}  # fmt: skip
    keys = iter(mw.random.split(key, 3 + len(sizes) * LAYERS))

    def normal(size):
        return mw.random.normal(next(keys), size) / math.sqrt(WIDTH)

    ends = [normal(size) for size in [(WORDS, WIDTH), (LENGTH, WIDTH), (WIDTH, WORDS)]]
    return *ends, [{name: normal(size) for name, size in sizes.items()} for _ in range(LAYERS)]


def token(model, caches, word, place):
    """Return the caches with one place more, and the most likely next word. word, place: scalars."""
    words, places, head, layers = model
    x, new = words[word] + places[place], []
    for layer, cache in zip(layers, caches):
        q, *made = mw.unstack(mw.einsum("e,ethd->thd", mw.nn.standardize(x), layer["qkv"]))
        cache = cache.at[:, :, place].set(mw.stack(made))
        scores = mw.einsum("hd,hpd->hp", q, cache[0]) / math.sqrt(EACH)
        scores = mw.where(mw.arange(LENGTH) <= place, scores, -mw.inf)
        mixed = mw.einsum("hp,hpd->hd", mw.softmax(scores, axis=-1), cache[1])
        x = x + mw.einsum("hd,hde->e", mixed, layer["out"])
        x = x + mw.nn.gelu(mw.nn.standardize(x) @ layer["up"]) @ layer["down"]
        new.append(cache)
    return new, mw.argmax(mw.nn.standardize(x) @ head)


def generate(model, prompt, mesh):
    """Return the words of the prompt and those that follow, up to LENGTH."""
    where = (None, None, None, [PLACES] * LAYERS)
    step = mw.jit(token, mesh=mesh, in_layouts=(where, [CACHE] * LAYERS, None, None),
                  out_layouts=([CACHE] * LAYERS, "[]"), donate=(1,))  # fmt: skip
    caches = [np.zeros((2, HEADS, LENGTH, EACH), np.float32) for _ in range(LAYERS)]
    said, guess = [], 0
    for place in range(LENGTH):
        word = prompt[place] if place < len(prompt) else guess
        caches, best = step(model, caches, np.int32(word), np.int32(place))
        guess = int(best)
        said.append(word)
    return said


def main():
    model = mw.jit(drawn)(np.asarray(mw.random.key(0)))
    said = {mesh: generate(model, [7, 1, 4], mesh) for mesh in ("tp=1", "tp=2")}
    print(*said["tp=2"])
    assert said["tp=1"] == said["tp=2"]


if __name__ == "__main__":
    main()
