"""Kernels as plain values: the ways to compute an op, and what a program may choose of them.

A kernel is a named implementation of a pattern, under conditions, with a class of numerics. `select-kernels` gives each
op the fastest one that suits it and that nobody has switched off: compile options, `mw.kernels(...)` around a call,
`kernels = "-flash"` of a region. A few are off until somebody asks for them: `kernels = "+gemm_tf32"`.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from math import inf

from meshweave.errors import UsageError, did_you_mean

REFERENCE = "reference"
BIT_EXACT, DETERMINISTIC, TOL = "bit_exact", "deterministic", "tol"
ROUNDING = {BIT_EXACT: 0.0, DETERMINISTIC: 1e-5, TOL: 1e-3}
"""Of each class of numerics what it may move results of f32 by, of the size of what is added: nothing; sums in another
order; factors rounded to fewer bits as well.
"""


@dataclass(frozen=True)
class Kernel:
    """A way to compute something.

    pattern:  what it computes, in words; dtypes: of what elements (empty: any); targets: where.
    numerics: `bit_exact` (the same bits however the program is sliced and sharded), `deterministic` (the same bits in
              every run, within rounding of the reference), or `tol` (within ROUNDING of it).
    default:  whether it is taken without being asked for.
    """

    name: str
    pattern: str
    dtypes: frozenset[str]
    targets: frozenset[str]
    numerics: str
    default: bool = True

    @property
    def rounding(self) -> float:
        """What it may move results by, as of ROUNDING."""
        return ROUNDING[self.numerics]

    def suits(self, numerics: str, within: float = inf) -> bool:
        """May it compute what shall be `bit_exact`, `deterministic`, or `within` a tolerance (`tol`)?"""
        if numerics == TOL:
            return self.rounding <= within
        return self.rounding <= ROUNDING[numerics]

    def refusal(self, dtype: str, target: str = "cpu") -> str:
        """Why it cannot compute elements of `dtype` on `target`; empty where it can."""
        return self.of_dtype(dtype) if target in self.targets else f"target {target} has none"

    def of_dtype(self, dtype: str) -> str:
        """Why it cannot compute elements of `dtype`, wherever it runs; empty where it can."""
        if self.dtypes and dtype not in self.dtypes:
            return f"elements are {dtype}, {' or '.join(sorted(self.dtypes))} is needed"
        return ""


_CPU, _GPU, _BOTH = frozenset({"cpu"}), frozenset({"gpu"}), frozenset({"cpu", "gpu"})
_FLOATS, _SMALL = frozenset({"f32", "f64"}), frozenset({"f16", "bf16"})
_ANY, _TF32 = frozenset[str](), "gemm_tf32"

KERNELS: dict[str, Kernel] = {
    kernel.name: kernel
    for kernel in (
        Kernel("flash", "attention without its score matrix", _SMALL | _FLOATS, _CPU, DETERMINISTIC),
        Kernel("blas", "a product of matrices, by the library", _FLOATS, _CPU, DETERMINISTIC),
        Kernel(_TF32, "a product of matrices, factors rounded to tf32", frozenset({"f32"}), _GPU, TOL, default=False),
        Kernel("cublaslt", "a product of matrices, by the library", _SMALL | _FLOATS, _GPU, DETERMINISTIC),
        Kernel("gemm_mma", "a product of matrices, on tensor cores", _SMALL, _GPU, DETERMINISTIC),
        Kernel("gemm_fma", "a product of matrices, by multiply-adds", _FLOATS, _GPU, DETERMINISTIC),
        Kernel("transpose", "a map that reads across the way its operand lies", _ANY, _GPU, BIT_EXACT),
        Kernel("elementwise", "maps over the same elements", _ANY, _GPU, BIT_EXACT),
        Kernel("rows", "ops that share rows, and sums along them", _ANY, _GPU, DETERMINISTIC),
        Kernel("columns", "sums whose results lie side by side", _ANY, _GPU, DETERMINISTIC),
        Kernel("codegen", "any op, in fused and vectorised loops", _ANY, _BOTH, DETERMINISTIC),
        Kernel(REFERENCE, "any op, as written and in the order written", _ANY, _BOTH, BIT_EXACT),
    )
}  # fmt: skip
"""Every kernel there is, the fastest first."""
PRODUCTS = ("blas", _TF32, "cublaslt", "gemm_mma", "gemm_fma")
"""Those that compute products of matrices alone."""
LIBRARIES = ("blas", _TF32, "cublaslt")
"""Those of them that a library may do."""
FAMILIES = ("transpose", "elementwise", "rows", "columns")
"""Those of which the lowering takes one, where it knows what shares a kernel."""
SWITCHES = "mw.switches"
"""Attribute of an op on gpu: the kernels that it may not take, `-rows -columns`."""
ROUNDED = f"+{_TF32}"
"""Among the switches of an op: its factors are rounded to tf32."""


def known(name: str, who: str = "kernels") -> str:
    """`name`, which is a kernel's. UsageError, with the nearest name, where it is none."""
    if name not in KERNELS:
        hint = did_you_mean(name, KERNELS)
        raise UsageError(f'{who}: no kernel "{name}": there are {", ".join(KERNELS)}{hint}')
    return name


@dataclass(frozen=True)
class Choice:
    """Which kernels may be taken.

    only:     the names of those allowed to begin with; None: all that are on by default.
    switches: (name, on), which add to that or take away.
    `reference` is always there: something must compute an op that nothing else may.
    """

    only: tuple[str, ...] | None = None
    switches: tuple[tuple[str, bool], ...] = ()

    @staticmethod
    def of(only: Iterable[str] | None = None, switches: Mapping[str, bool] | None = None) -> Choice:
        """A choice of known kernels, in one spelling. Raises UsageError."""
        for name in (*(only or ()), *(switches or {})):
            known(name)
        if (switches or {}).get(REFERENCE) is False:
            raise UsageError(
                f"kernels: {REFERENCE} is what is left when all else is off: it stays on"
            )
        allowed = None if only is None else tuple(sorted(set(only)))
        return Choice(allowed, tuple(sorted((switches or {}).items())))

    @staticmethod
    def parse(text: str) -> Choice:
        """The choice in words: `-flash`, `+blas`, or names alone, which are the only ones. Raises UsageError."""
        only, switches = [], {}
        for word in text.replace(",", " ").split():
            if word[0] in "+-":
                switches[word[1:]] = word[0] == "+"
            else:
                only.append(word)
        return Choice.of(only or None, switches)

    def allows(self, name: str) -> bool:
        """May the kernel be taken?"""
        default = KERNELS[name].default if self.only is None else name in self.only
        return name == REFERENCE or dict(self.switches).get(name, default)

    @property
    def disabled(self) -> tuple[str, ...]:
        """The kernels that may not be taken whoever asks for them, the fastest first."""
        said = {name for name, _ in self.switches}
        return tuple(
            name
            for name, kernel in KERNELS.items()
            if not self.allows(name) and (kernel.default or self.only is not None or name in said)
        )

    @property
    def enabled(self) -> tuple[str, ...]:
        """The kernels that may be taken though they are off by default, the fastest first."""
        return tuple(n for n, kernel in KERNELS.items() if not kernel.default and self.allows(n))

    def within(self, outer: Choice) -> Choice:
        """This choice where `outer` holds around it: its own words count, and `outer`'s where it says nothing. One that
        says `only` starts anew.
        """
        if self.only is not None:
            return self
        return Choice(
            outer.only, tuple(sorted({**dict(outer.switches), **dict(self.switches)}.items()))
        )

    def __str__(self) -> str:
        words = list(self.only or ())
        return (
            " ".join(words + [f"{'+' if on else '-'}{name}" for name, on in self.switches]) or "all"
        )


ALL = Choice()
"""The choice of somebody who asks for nothing."""


def as_choice(value: object) -> Choice:
    """The choice that an argument `kernels=` means: a Choice, its text, or None for all. Raises UsageError."""
    if value is None:
        return ALL
    if isinstance(value, Choice):
        return value
    if isinstance(value, str):
        return Choice.parse(value)
    raise UsageError(f'kernels: text such as "-flash" is needed, got {type(value).__name__}')
