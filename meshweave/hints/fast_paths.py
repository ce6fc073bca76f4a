"""Describe kernels as plain values: the ways to compute an op, and which of them a program may use.

A kernel is a named implementation of a pattern, under conditions, with a class of numerics. `select-kernels` gives
each op the fastest kernel that suits it and is not switched off: by compile options, `mw.kernels(...)` around a call,
or `kernels = "-flash"` on a region. A few are off by default and must be asked for: `kernels = "+gemm_tf32"`.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from math import inf

from meshweave.errors import UsageError, did_you_mean

REFERENCE = "reference"
BIT_EXACT, DETERMINISTIC, TOL = "bit_exact", "deterministic", "tol"
ROUNDING = {BIT_EXACT: 0.0, DETERMINISTIC: 1e-5, TOL: 1e-3}
"""Relative error that each class of numerics may add to f32 results: none; that of sums in another order; that of
factors rounded to fewer bits as well.
"""


@dataclass(frozen=True)
class FastPath:
    """Describe one way to compute something.

    pattern:  what it computes, in words; dtypes: element types it accepts (empty: any); targets: where it exists.
    numerics: `bit_exact` (the same bits however the program is sliced and sharded, save in sums of floats that are cut:
              the hint refuses those), `deterministic` (the same bits in every run, within rounding of the
              reference), or `tol` (within ROUNDING of it).
    default:  whether it is used without being asked for.
    """

    name: str
    pattern: str
    dtypes: frozenset[str]
    targets: frozenset[str]
    numerics: str
    default: bool = True

    @property
    def rounding(self) -> float:
        """Return the relative error it may add to results, from ROUNDING."""
        return ROUNDING[self.numerics]

    def suits(self, numerics: str, within: float = inf) -> bool:
        """Tell whether it may compute what must be `bit_exact`, `deterministic`, or `within` a tolerance (`tol`)."""
        if numerics == TOL:
            return self.rounding <= within
        return self.rounding <= ROUNDING[numerics]

    def refusal(self, dtype: str, target: str = "cpu") -> str:
        """Explain why it cannot compute elements of `dtype` on `target`; empty where it can."""
        return self.of_dtype(dtype) if target in self.targets else f"target {target} has none"

    def of_dtype(self, dtype: str) -> str:
        """Explain why it cannot compute elements of `dtype`, wherever it runs; empty where it can."""
        if self.dtypes and dtype not in self.dtypes:
            return f"elements are {dtype}, {' or '.join(sorted(self.dtypes))} is needed"
        return ""


_CPU, _GPU, _BOTH = frozenset({"cpu"}), frozenset({"gpu"}), frozenset({"cpu", "gpu"})
_FLOATS, SHORT = frozenset({"f32", "f64"}), frozenset({"f16", "bf16"})
_ANY, _BF16, _TF32 = frozenset[str](), frozenset({"bf16"}), "gemm_tf32"

KERNELS: dict[str, FastPath] = {
    kernel.name: kernel
    for kernel in (
        FastPath("flash", "attention without its score matrix", SHORT | _FLOATS, _BOTH, DETERMINISTIC),
        FastPath("blas", "a product of matrices, by the library", _FLOATS, _CPU, DETERMINISTIC),
        FastPath("lapack", "a factorisation or triangular system, by the library", _FLOATS, _CPU, DETERMINISTIC),
        FastPath("gemm_bf16", "a product of bf16, by the processor's instructions", _BF16, _CPU, DETERMINISTIC),
        FastPath("panels", "a convolution, 16-bit or strided product, by panels", SHORT | _FLOATS, _CPU, DETERMINISTIC),
        FastPath(_TF32, "a product of matrices, factors rounded to tf32", frozenset({"f32"}), _GPU, TOL, default=False),
        FastPath("cublaslt", "a product of matrices, by the library", SHORT | _FLOATS, _GPU, DETERMINISTIC),
        FastPath("gemm_wgmma", "a product of matrices, on Hopper's tensor cores", SHORT, _GPU, DETERMINISTIC),
        FastPath("gemm_mma", "a product of matrices, on tensor cores", SHORT, _GPU, DETERMINISTIC),
        FastPath("gemm_fma", "a product of matrices, by multiply-adds", _FLOATS, _GPU, DETERMINISTIC),
        FastPath("gemm_rows", "a product of few rows, weights read once", SHORT | _FLOATS, _GPU, DETERMINISTIC),
        FastPath("transpose", "a map that reads across the way its operand lies", _ANY, _GPU, BIT_EXACT),
        FastPath("elementwise", "maps over the same elements", _ANY, _GPU, BIT_EXACT),
        FastPath("rows", "ops that share rows, and sums along them", _ANY, _GPU, DETERMINISTIC),
        FastPath("columns", "sums whose results lie side by side", _ANY, _GPU, DETERMINISTIC),
        FastPath("codegen", "any op, in fused and vectorised loops", _ANY, _BOTH, DETERMINISTIC),
        FastPath(REFERENCE, "any op, as written and in the order written", _ANY, _BOTH, BIT_EXACT),
    )
}  # fmt: skip
"""All kernels, the fastest first."""
PRODUCTS = ("blas", _TF32, "cublaslt", "gemm_wgmma", "gemm_mma", "gemm_fma", "gemm_rows")
"""Kernels that only compute products of matrices."""
LIBRARIES = ("blas", _TF32, "cublaslt")
"""Kernels for products that a library may compute."""
FAMILIES = ("transpose", "elementwise", "rows", "columns")
"""Kernels among which the lowering chooses once it knows which ops share a kernel."""
KERNEL, SWITCHES, CHOSEN = "mw.kernel", "mw.switches", "mw.kernels"
"""What select-kernels leaves: on an op the kernel that it takes, and on gpu those that it may not use (`-rows`); on the
module a row for each op, for reports.

They are attributes of ops of linalg and builtin, which no dialect defined in Python can extend or verify: `known`
judges the names where they are read.
"""
NO_PANELS = "-panels"
"""Switch of a product of the library that may not be computed by panels where the library cannot read its operands."""
ROUNDED, PANELS, BF16 = f"+{_TF32}", "+panels", "+gemm_bf16"
"""Switches of an op whose factors are rounded to tf32, of what is computed by panels, and of what the processor's
instructions for bf16 compute.
"""


def known(name: str, who: str = "kernels") -> str:
    """Return `name` if a kernel is called so. Raises UsageError, with the nearest name, if none is."""
    if name not in KERNELS:
        hint = did_you_mean(name, KERNELS)
        raise UsageError(f'{who}: no kernel "{name}": there are {", ".join(KERNELS)}{hint}')
    return name


@dataclass(frozen=True)
class Choice:
    """Select the kernels that may be used.

    only:     the names allowed to begin with; None: all that are on by default.
    switches: (name, on) pairs, which add to that or take away.
    `reference` is always allowed: something must compute an op that no other kernel may.
    """

    only: tuple[str, ...] | None = None
    switches: tuple[tuple[str, bool], ...] = ()

    @staticmethod
    def of(only: Iterable[str] | None = None, switches: Mapping[str, bool] | None = None) -> Choice:
        """Make a choice of known kernels, in canonical form. Raises UsageError for an unknown kernel."""
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
        """Parse a choice: `-flash`, `+blas`, or bare names, which are then the only kernels allowed.

        Raises UsageError.
        """
        only, switches = [], {}
        for word in text.replace(",", " ").split():
            if word[0] in "+-":
                switches[word[1:]] = word[0] == "+"
            else:
                only.append(word)
        return Choice.of(only or None, switches)

    def allows(self, name: str) -> bool:
        """Tell whether the kernel may be used."""
        default = KERNELS[name].default if self.only is None else name in self.only
        return name == REFERENCE or dict(self.switches).get(name, default)

    @property
    def disabled(self) -> tuple[str, ...]:
        """Return the kernels that may not be used whoever asks for them, the fastest first."""
        said = {name for name, _ in self.switches}
        return tuple(
            name
            for name, kernel in KERNELS.items()
            if not self.allows(name) and (kernel.default or self.only is not None or name in said)
        )

    @property
    def enabled(self) -> tuple[str, ...]:
        """Return the kernels that may be used although they are off by default, the fastest first."""
        return tuple(n for n, kernel in KERNELS.items() if not kernel.default and self.allows(n))

    def within(self, outer: Choice) -> Choice:
        """Return this choice where `outer` holds around it: `outer` decides what this one says nothing about.

        A choice that says `only` ignores `outer`.
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
"""The default choice."""


def as_choice(value: object) -> Choice:
    """Read an argument `kernels=`: a Choice, its text, or None for all. Raises UsageError."""
    if value is None:
        return ALL
    if isinstance(value, Choice):
        return value
    if isinstance(value, str):
        return Choice.parse(value)
    raise UsageError(f'kernels: text such as "-flash" is needed, got {type(value).__name__}')
