"""Choose how a length is split, and compute the numbers that transforms multiply with."""

from __future__ import annotations

import numpy as np

from meshweave.ir.fft import LONGEST, convolved

Numbers = np.ndarray[tuple[int, ...], np.dtype[np.complex128]]


def radices(length: int) -> list[int]:
    """Return factors of a length whose transforms are written out: eights first, since vectors like them."""
    found, twos = [], 0
    while length % 2 == 0:
        length, twos = length // 2, twos + 1
    found = _twos(twos)
    for prime in range(3, LONGEST + 1, 2):
        while length % prime == 0:
            found.append(prime)
            length //= prime
    assert length == 1, "longer primes are computed as convolutions"
    return found


def _twos(count: int) -> list[int]:
    """Return factors of 2 to the power of `count`."""
    eights, rest = divmod(count, 3)
    if rest == 1 and eights:
        return [8] * (eights - 1) + [4, 4]
    return [8] * eights + ([1 << rest] if rest else [])


def roots(length: int, powers: np.ndarray[tuple[int, ...], np.dtype[np.int64]]) -> Numbers:
    """Return powers of the root of unity e^(-2 pi i / length), each rounded once."""
    angles = (-2.0 * np.pi / length) * (powers % length)
    found: Numbers = np.cos(angles) + 1j * np.sin(angles)
    return found


def chirp(length: int) -> Numbers:
    """Return e^(-pi i j^2 / length) for each j below it."""
    squares = np.arange(length, dtype=np.int64) ** 2
    return roots(2 * length, squares)


def chirp_transform(length: int) -> Numbers:
    """Return the transform of the conjugate chirp, around zero, that a convolution multiplies with."""
    size, numbers = convolved(length), chirp(length)
    around = np.zeros(size, np.complex128)
    around[:length] = numbers.conj()
    around[size - length + 1 :] = numbers[1:][::-1].conj()
    found: Numbers = np.fft.fft(around) / size
    return found
