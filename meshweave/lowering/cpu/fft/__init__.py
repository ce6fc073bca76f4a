"""Write functions that compute discrete Fourier transforms (`mw.fft`). The target cpu imports this room."""

from meshweave.lowering.cpu.fft.writer import TransformWriter

__all__ = ["TransformWriter"]
