"""Compile the collectives that a step calls (`mw_*`) for an engine, into one more object of its bundle.

An engine whose ranks read each other's buffers has functions that do so; one whose ranks of a host share a window has
functions that go through it, or call the MPI library. Only what a program calls is generated; the objects are cached by
value.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import NamedTuple

from meshweave.abi import DTYPES, KINDS, STAGING, MpiTable, reduction_symbol
from meshweave.cache import cached_object
from meshweave.errors import CompileError
from meshweave.ir.bindings import PassManager, ir
from meshweave.ir.unlocked import LlvmCompiler
from meshweave.lowering.cpu.collectives.library import Instance, Linked, link
from meshweave.plan.collectives import BY_OP, MOVING
from meshweave.targets import ENGINES

# A box reads and writes elements where they belong, so that nothing is packed: for ranks that read their peers.
_MOVING = [BY_OP[op] for op in MOVING]
REDUCTIONS = tuple(form for row in _MOVING if row.reduces for form in row.forms)
BOXES = tuple(form for row in _MOVING for form in row.forms if form != row.op)
MOVES = ("relayout", *(form for row in _MOVING if not row.reduces for form in row.forms))
MERGES = tuple(f"merge_{width}" for width in (1, 2, 4, 8))  # of elements of so many bytes
UNITS = (1, 2, 4, 8, 16)  # bytes of the runs that there are loops for

_PIPELINE = (
    "builtin.module(convert-scf-to-cf,arith-expand{include-bf16=true},"
    "convert-arith-to-llvm,convert-cf-to-llvm,reconcile-unrealized-casts,canonicalize,cse)"
)


@dataclass(frozen=True, order=True)
class Collective:
    """Name one function: op, and for a reduction its kind and dtype.

    Where `is_async`, it is two functions: one that starts it and one that waits for it.
    """

    op: str
    kind: str = ""
    dtype: str = ""
    is_async: bool = False

    @property
    def symbol(self) -> str:
        """Return the name of the function: `mw_all_reduce_sum_f32`, `mw_all_gather`."""
        return "_".join(("mw", self.op, self.kind, self.dtype)) if self.kind else f"mw_{self.op}"

    @property
    def symbols(self) -> tuple[str, ...]:
        """Return the names of its one or two functions."""
        ends = ("_start", "_wait") if self.is_async else ("",)
        return tuple(self.symbol + end for end in ends)

    @staticmethod
    def parse(symbol: str) -> Collective:
        """Return the collective of that name, which may be that of its start or wait.

        Raises CompileError when there is none, or it cannot reduce that dtype.
        """
        for end in ("_start", "_wait"):
            if symbol.endswith(end):
                return replace(Collective.parse(symbol.removesuffix(end)), is_async=True)
        for op in (*MOVES, *MERGES):
            if symbol == f"mw_{op}":
                return Collective(op)
        for op in REDUCTIONS:
            prefix = f"mw_{op}_"
            if symbol.startswith(prefix):
                kind, _, dtype = symbol[len(prefix) :].partition("_")
                return Collective(op, kind, dtype).checked()
        raise CompileError(f"no collective {symbol}")

    def checked(self) -> Collective:
        """Return itself. Raises CompileError when no engine can reduce this dtype by this kind."""
        if self.kind not in KINDS:
            raise CompileError(
                f'{self.op}: no reduction "{self.kind}"; there are {", ".join(KINDS)}'
            )
        if self.dtype not in DTYPES or (self.dtype == "i1" and self.kind not in ("max", "min")):
            raise CompileError(f"{self.op}: cannot reduce {self.dtype} by {self.kind}")
        return self


class ReducedElement(NamedTuple):
    """Say how a dtype is reduced.

    source: the file with its arithmetic; written: the dtype that this is written for; memory: its type in memory;
    wide: the type of a running value; nbytes: in memory.
    """

    source: str
    written: str
    memory: str
    wide: str
    nbytes: int


ELEMENTS = {
    "f64": ReducedElement("float", "f32", "f64", "f64", 8),
    "f32": ReducedElement("float", "f32", "f32", "f32", 4),
    "f16": ReducedElement("narrow_float", "bf16", "f16", "f32", 2),
    "bf16": ReducedElement("narrow_float", "bf16", "bf16", "f32", 2),
    "i64": ReducedElement("integer", "i32", "i64", "i64", 8),
    "i32": ReducedElement("integer", "i32", "i32", "i32", 4),
    "i16": ReducedElement("integer", "i32", "i16", "i16", 2),
    "i8": ReducedElement("integer", "i32", "i8", "i8", 1),
    "i1": ReducedElement("boolean", "i1", "i8", "i8", 1),
}


def _reductions(
    wanted: Iterable[Collective], sources: Sequence[str], **numbers: int
) -> list[Instance]:
    """Instantiate `sources` for each kind and dtype, and the arithmetic for each dtype."""
    instances = []
    for kind, dtype in sorted({(c.kind, c.dtype) for c in wanted if c.kind}):
        element = ELEMENTS[dtype]
        types = {"elem": element.memory, "wide": element.wide}
        own = {
            "elem_bytes": element.nbytes,
            "datatype": MpiTable.datatype(dtype),
            "reduction": MpiTable.reduction(kind, dtype),
        }
        parts = {"sum_f32": f"{kind}_{dtype}", "_f32": f"_{dtype}"}
        instances += [Instance(name, types, own | numbers, parts) for name in sources]
        arithmetic = {f"_{element.written}": f"_{dtype}"}
        instances.append(Instance(f"elements/{element.source}", types, parts=arithmetic))
    return instances


def _merges(wanted: Iterable[Collective], source: str = "merge", **numbers: int) -> list[Instance]:
    """Instantiate `source` for each width of elements."""
    made = []
    for op in sorted({c.op for c in wanted if c.op in MERGES}):
        width = int(op.removeprefix("merge_"))
        sizes = {"unit_bytes": width, "unit_bits": 8 * width} | numbers
        made.append(Instance(source, {"unit": f"i{8 * width}"}, sizes, {"_4": f"_{width}"}))
    return made


def _copies(units: Collection[int]) -> list[Instance]:
    """Instantiate the copies of short runs, as a chain that ends with the copy of runs of any length."""
    instances, head = [], "copy_runs"
    for unit in sorted(units):
        tile = max(16, 64 // unit)
        types = {"unit": f"i{8 * unit}" if unit <= 8 else f"vector<{unit}xi8>"}
        numbers = {"unit_bytes": unit, "tile": tile, "tile_cells": tile * tile}
        parts = {"_4": f"_{unit}", "copy_block_next": head}
        instances.append(Instance("copies", types, numbers, parts))
        head = f"copy_block_{unit}"
    return [*instances, *(Instance(name, parts={"copy_block": head}) for name in _COPYING)]


_COPYING = ("pieces", *(box for box in BOXES if box not in REDUCTIONS))
_READING = tuple(row.op for row in _MOVING if not row.reduces)
_REDUCING = ("reduction", *REDUCTIONS)
_MEETING = ("table", "meeting", "async")


def peers_module(wanted: Sequence[Collective], units: Collection[int] = UNITS) -> Linked:
    """Make the module for ranks that are threads and read each other's buffers."""
    plain = [Instance(name) for name in (*_MEETING, "local", *_READING)]
    exports = [symbol for collective in wanted for symbol in collective.symbols]
    made = [*plain, *_copies(units), *_reductions(wanted, _REDUCING), *_merges(wanted)]
    return link(made, exports)


def has_own_operation(kind: str, dtype: str) -> bool:
    """Tell whether a reduction needs our compiled operation.

    MPI has no bf16, a slow f16, and lets max and min drop a NaN.
    """
    return dtype in ("f16", "bf16") or (dtype in ("f32", "f64") and kind in ("max", "min"))


LIMIT = (1 << 31) - 1  # elements or bytes in one MPI call
PIECE = 1 << 30  # elements or bytes per call when there are more


def window_module(
    wanted: Sequence[Collective],
    units: Collection[int] = UNITS,
    staging: int = 0,
    limit: int = LIMIT,
    piece: int = PIECE,
) -> Linked:
    """Make the module for ranks that are processes: through the shared window of a host, and by the MPI library.

    staging: see `staging.staging_bytes`. limit: elements (of reductions) or bytes (of moves) up to which one call of
    the library is made; piece: those of each call beyond.
    """
    sizes = {"limit": limit, "piece": piece}
    through = [Instance(name) for name in (*_MEETING, "futex")]
    through += [Instance("window", numbers={"staging_bytes": staging})]
    through += [*_copies(units), *(Instance(name) for name in _READING)]
    through += [*_reductions(wanted, _REDUCING), *_merges(wanted)]
    library = [Instance(f"mpi/{name}", numbers=sizes) for name in ("common", *_READING)]
    sources = ["mpi/operation", *(f"mpi/{row.op}" for row in _MOVING if row.reduces)]
    library += _reductions(wanted, sources, **sizes)
    numbers = {
        "datatype_i64": MpiTable.datatype("i64"),
        "sum_i64": MpiTable.reduction("sum", "i64"),
    }
    library += _merges(wanted, "mpi/merge", **numbers)
    exports = [symbol for collective in wanted for symbol in collective.symbols]
    reductions = {(c.kind, c.dtype) for c in wanted if c.kind}
    exports += [reduction_symbol(*pair) for pair in reductions if has_own_operation(*pair)]
    return link([*(_within_window(i) for i in through), *library], [*exports, STAGING])


def _within_window(instance: Instance) -> Instance:
    """Rename a collective that goes through the window; what calls it is named `mw_*`.

    A relayout stays within its rank, and needs no other.
    """
    renamed = {
        f"mw_{name}": f"window_{name}"
        for name in ("all_", "reduce_", "permute", "exchange", "merge")
    }
    return replace(instance, parts={**renamed, **instance.parts})


class Runtime(NamedTuple):
    """Say how an engine's collectives are made.

    module: makes it from the collectives, the lengths of runs, and the bytes that the program needs of shared memory.
    libraries: those that they call. ops: those that there are.
    """

    module: Callable[[Sequence[Collective], Collection[int], int], Linked]
    libraries: tuple[str, ...]
    ops: tuple[str, ...]


_PEERS = Runtime(
    lambda wanted, units, _: peers_module(wanted, units), (), (*MOVES, *MERGES, *REDUCTIONS)
)
_WINDOW = Runtime(
    window_module, ("mpi",), ("relayout", *MERGES, *(row.op for row in _MOVING if row.mpi))
)


def runtime_of(engine: str) -> Runtime:
    """Return how an engine's collectives are made. Raises CompileError for an engine that has none."""
    found = {row.name: _PEERS for row in ENGINES.values() if row.reads_peers}
    found |= {row.name: _WINDOW for row in ENGINES.values() if row.shares_window}
    if engine not in found:
        known = ", ".join(found)
        raise CompileError(f'no collectives for engine "{engine}"; there are {known}')
    return found[engine]


def collectives_object(
    engine: str, symbols: Iterable[str], staging: int = 0, runs: Collection[int] = UNITS
) -> bytes:
    """Return the ELF object that defines `symbols` (names of `mw_*` functions) for an engine.

    staging: see `staging.staging_bytes`. runs: lengths, in bytes, of what the program copies at a time: loops for
    others take longer to compile than anything else here.
    Raises CompileError for an engine or a function that does not exist.
    """
    runtime = runtime_of(engine)
    units = tuple(unit for unit in UNITS if unit in runs)
    wanted = tuple(sorted({Collective.parse(symbol) for symbol in symbols}))
    for collective in wanted:
        if collective.op not in runtime.ops:
            raise CompileError(f"no collective {collective.symbol} for engine {engine}")
    return _object(engine, wanted, units, staging)


@lru_cache(maxsize=64)
def _object(
    engine: str, collectives: tuple[Collective, ...], units: tuple[int, ...], staging: int
) -> bytes:
    return kept_object(runtime_of(engine).module(collectives, units, staging))


def kept_object(linked: Linked) -> bytes:
    """Return the object of a module, or what an earlier process made of it."""
    return cached_object(linked, lambda: compile_text(*linked))


def compile_text(
    text: str, externals: Iterable[str], opt_level: int = 3, processor: str = ""
) -> bytes:
    """Compile a module of `llvm.func`s whose bodies may use arith, scf and cf to an ELF object.

    It is parsed in the current context, if there is one.

    externals: every function that it only declares; one left out makes the compilation fail. processor: see
    `object_of`.
    """
    context = ir.Context.current or ir.Context()
    with context, ir.Location.unknown():
        module = ir.Module.parse(text)
        PassManager.parse(_PIPELINE).run(module.operation)
        return object_of(module, externals, opt_level, processor=processor)


_LIBCALLS = ("memcpy", "memmove", "memset")  # what LLVM calls by itself


def object_of(
    module: ir.Module,
    externals: Iterable[str],
    opt_level: int = 3,
    alone: bool = False,
    processor: str = "",
    begins: Callable[[], object] = lambda: None,
) -> bytes:
    """Return the ELF object (large code model) of a module in the LLVM dialect.

    Other threads of Python go on while LLVM makes code; alone: nobody else uses the module's context, so that they
    go on while it translates and optimises the module, too. processor: as LLVM names it, whose instructions the code
    may use; "": this machine's. begins: called when LLVM is about to make code.

    Raises CompileError when LLVM makes none, or when the module has no function that others may call.
    """
    exported = _exported(module)
    if exported is None:
        raise CompileError("the module defines no function that others may call")
    if processor:
        _made_for(module, processor)
    engine = LlvmCompiler(module, opt_level, alone)
    if not engine.made:
        raise CompileError("LLVM does not take the module")
    # Without an address for every symbol nothing is compiled; none of them is called.
    for name in (*externals, *_LIBCALLS):
        engine.register(name, 4096)
    begins()
    # Looking a function up compiles them all; the dump by itself would look internal ones up.
    engine.compile(exported)
    with open(os.memfd_create("meshweave"), "rb") as file:  # no disk that may be full
        engine.dump(f"/proc/self/fd/{file.fileno()}")
        code = file.read()
    engine.close()
    if not code:
        raise CompileError("LLVM made no object: a function that the code calls is not known")
    return code


def _made_for(module: ir.Module, processor: str) -> None:
    """Let the functions of a module use the instructions of a processor, and no others that this machine has."""
    with module.context:
        name, features = ir.StringAttr.get(processor), ir.Attribute.parse(_NO_FEATURES)
        for view in module.body.operations:
            if view.operation.name == "llvm.func" and len(view.operation.regions[0].blocks):
                view.operation.attributes["target_cpu"] = name
                view.operation.attributes["target_features"] = features


_NO_FEATURES = '#llvm.target_features<["+sse2"]>'  # beyond the processor's; instead of all that this machine has


def _exported(module: ir.Module) -> str | None:
    """Return the name of a function that a module defines for others."""
    for view in module.body.operations:
        op = view.operation
        if op.name != "llvm.func" or not len(op.regions[0].blocks):
            continue
        if "linkage" not in op.attributes or "external" in str(op.attributes["linkage"]):
            return str(ir.StringAttr(op.attributes["sym_name"]).value)
    return None
