"""Compute attention, written out, in a budget of bytes: it is sliced over time, and the result is the same."""

import numpy as np

import meshweave as mw

HEADS, PLACES, WIDTH = 8, 512, 32


def attention(q, k, v):
    scores = q @ mw.matrix_transpose(k) / WIDTH**0.5
    return mw.softmax(scores, axis=-1) @ v


def within(q, k, v):
    with mw.hint(peak_bytes="1MiB"):
        return attention(q, k, v)


def main():
    rng = np.random.default_rng(0)
    arguments = [rng.normal(size=(HEADS, PLACES, WIDTH)).astype(np.float32) for _ in range(3)]
    results = []
    with mw.kernels(flash=False):  # that kernel keeps no scores, and would need no budget
        for function in attention, within:
            compiled = mw.jit(function, mesh="tp=2", in_layouts="[tp, _, _]")
            results.append(np.asarray(compiled(*arguments)))
            told = compiled.explain().as_dict()
            print(f"{function.__name__}: at most {told['peak_bytes'] / 2**20:.2f} MiB on a rank")
    (region,) = told["regions"]
    print(f"{region['slices']} slices, one after the other")
    assert np.allclose(*results, atol=1e-5)


if __name__ == "__main__":
    main()
