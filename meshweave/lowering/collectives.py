"""The collectives that a compiled step calls (`mw_*`), compiled for an engine into one more object
of its bundle.

`local`: code that works straight between the buffers of ranks that share this process
(lowering/local.py). `mpi`: calls of the MPI library (lowering/mpi.py). Only the functions a program
calls are generated; the objects are cached by value.
"""

from __future__ import annotations

import ctypes
import os
from collections.abc import Callable, Collection, Iterable
from dataclasses import dataclass, replace
from functools import lru_cache

from meshweave import bindings
from meshweave.abi import DTYPES, KINDS
from meshweave.cache import cached_object
from meshweave.errors import CompileError
from meshweave.lowering import local, mpi
from meshweave.lowering.copies import UNITS

# A box reads and writes elements where they belong, so that nothing is packed: engine `local` alone.
REDUCTIONS = ("all_reduce", "reduce_scatter_box", "reduce_scatter")
BOXES = ("all_gather_box", "all_to_all_box", "reduce_scatter_box")
MOVES = ("all_gather", "all_to_all", "permute", "exchange", "relayout", *BOXES[:2])

_PIPELINE = (
    "builtin.module(convert-scf-to-cf,arith-expand{include-bf16=true},"
    "convert-arith-to-llvm,convert-cf-to-llvm,reconcile-unrealized-casts,canonicalize,cse)"
)


@dataclass(frozen=True, order=True)
class Collective:
    """One function: op, and for a reduction its kind and dtype. early: it is two, one that starts it
    and one that waits for it. units: lengths of runs, in bytes, that it has loops for.
    """

    op: str
    kind: str = ""
    dtype: str = ""
    early: bool = False
    units: tuple[int, ...] = UNITS

    @property
    def symbol(self) -> str:
        """Name of the function: `mw_all_reduce_sum_f32`, `mw_all_gather`."""
        return "_".join(("mw", self.op, self.kind, self.dtype)) if self.kind else f"mw_{self.op}"

    @staticmethod
    def parse(symbol: str) -> Collective:
        """The collective of that name, which may be that of its start or wait. CompileError when
        there is none, or it cannot reduce that dtype.
        """
        for end in ("_start", "_wait"):
            if symbol.endswith(end):
                return replace(Collective.parse(symbol.removesuffix(end)), early=True)
        for op in MOVES:
            if symbol == f"mw_{op}":
                return Collective(op)
        for op in REDUCTIONS:
            prefix = f"mw_{op}_"
            if symbol.startswith(prefix):
                kind, _, dtype = symbol[len(prefix) :].partition("_")
                return Collective(op, kind, dtype).checked()
        raise CompileError(f"no collective {symbol}")

    def checked(self) -> Collective:
        """Itself. CompileError when no engine can reduce this dtype by this kind."""
        if self.kind not in KINDS:
            raise CompileError(
                f'{self.op}: no reduction "{self.kind}"; there are {", ".join(KINDS)}'
            )
        if self.dtype not in DTYPES or (self.dtype == "i1" and self.kind not in ("max", "min")):
            raise CompileError(f"{self.op}: cannot reduce {self.dtype} by {self.kind}")
        return self


@dataclass(frozen=True)
class Code:
    """How an engine's collectives are generated: text of MLIR (from the collectives, and the bytes
    that the program needs of the engine's shared memory), and what it needs from outside.
    """

    generate: Callable[[list[Collective], int], str]
    externals: tuple[str, ...]
    libraries: tuple[str, ...]


CODES = {
    "local": Code(lambda wanted, _: local.generate(wanted), local.EXTERNALS, ()),
    "mpi": Code(
        lambda wanted, staging: mpi.generate(wanted, staging=staging), mpi.EXTERNALS, ("mpi",)
    ),
}


def collectives_object(
    engine: str, symbols: Iterable[str], staging: int = 0, runs: Collection[int] = UNITS
) -> bytes:
    """The ELF object that defines `symbols` (names of `mw_*` functions) for an engine.

    staging: see `window.staging_bytes`. runs: lengths, in bytes, of what the program copies at a time:
    loops for others take longer to compile than anything else here.
    Raises CompileError for an engine or a function that does not exist.
    """
    if engine not in CODES:
        raise CompileError(f'no collectives for engine "{engine}"; there are {", ".join(CODES)}')
    units = tuple(unit for unit in UNITS if unit in runs)
    wanted = tuple(sorted({replace(Collective.parse(symbol), units=units) for symbol in symbols}))
    for collective in wanted:
        if engine != "local" and collective.op in BOXES:
            raise CompileError(f"no collective {collective.symbol} for engine {engine}")
    return _object(engine, wanted, staging)


@lru_cache(maxsize=64)
def _object(engine: str, collectives: tuple[Collective, ...], staging: int) -> bytes:
    code = CODES[engine]
    return kept_text(code.generate(list(collectives), staging), code.externals)


def kept_text(text: str, externals: tuple[str, ...]) -> bytes:
    """What `compile_text` gives, or gave to an earlier process."""
    return cached_object((text, externals), lambda: compile_text(text, externals))


def compile_text(text: str, externals: Iterable[str], opt_level: int = 3) -> bytes:
    """Compile a module of `llvm.func`s whose bodies may use arith, scf and cf, in the current context if
    there is one. Returns an ELF object.

    externals: every function that it only declares; one left out makes the compilation fail.
    """
    context = bindings.ir.Context.current or bindings.ir.Context()
    with context, bindings.ir.Location.unknown():
        module = bindings.ir.Module.parse(text)
        bindings.PassManager.parse(_PIPELINE).run(module.operation)
        return object_of(module, externals, opt_level)


def object_of(module: object, externals: Iterable[str], opt_level: int = 3) -> bytes:
    """The ELF object (large code model) of a module in the LLVM dialect. CompileError when LLVM
    makes none.
    """
    engine = bindings.ExecutionEngine(
        module, opt_level=opt_level, enable_object_dump=True, enable_pic=False
    )
    for (
        name
    ) in externals:  # without an address for every symbol nothing is compiled; it is not called
        engine.raw_register_runtime(name, ctypes.c_void_p(4096))
    engine.initialize()
    with open(os.memfd_create("meshweave"), "rb") as file:  # no disk that may be full
        engine.dump_to_object_file(f"/proc/self/fd/{file.fileno()}")
        code = file.read()
    if not code:
        raise CompileError("LLVM made no object: a function that the code calls is not known")
    return code
