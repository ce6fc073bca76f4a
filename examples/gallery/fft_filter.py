"""Take the noise off a picture by its Fourier transform; rows lie over four ranks, and two exchanges turn them."""

import numpy as np

import meshweave as mw

SIZE, KEPT = 96, 8


@mw.jit(mesh="x=4", in_layouts="[x, _]", out_layouts="[x, _]")
def smooth(picture):
    """Keep the KEPT lowest frequencies of both dims."""
    waves = mw.fft.fftn(picture)
    low = mw.abs(mw.fft.fftfreq(SIZE) * SIZE) <= KEPT
    waves = mw.where(low[:, None] & low[None, :], waves, 0)
    return mw.real(mw.fft.ifftn(waves))


def main():
    down, across = np.meshgrid(
        *[np.linspace(0, 2 * np.pi, SIZE, endpoint=False)] * 2, indexing="ij"
    )
    clean = np.sin(2 * down) * np.cos(3 * across)
    noisy = (clean + np.random.default_rng(0).normal(0, 0.5, clean.shape)).astype(np.complex64)
    smoothed = np.asarray(smooth(noisy))
    for name, picture in ("noisy", noisy.real), ("smoothed", smoothed):
        print(f"{name}: off by {np.sqrt(np.mean((picture - clean) ** 2)):.2f} on average")
    waves = np.fft.fft2(noisy)
    low = np.abs(np.fft.fftfreq(SIZE) * SIZE) <= KEPT
    assert np.allclose(smoothed, np.fft.ifft2(waves * np.outer(low, low)).real, atol=1e-5)


if __name__ == "__main__":
    main()
