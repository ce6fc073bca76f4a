"""Write and read `mw.program`, the op that says what holds for a whole program."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

from meshweave.bundle import CollectiveInfo, ExchangeInfo, OpInfo, Port
from meshweave.errors import CompileError
from meshweave.ir.bindings import ir
from meshweave.ir.build import OpBuilder, i64

CODE = "code"  # attribute of mw.program: the `CodeFacts` of a program that to-llvm has made
CHIP = "chip"  # attribute of mw.program: the chip that to-gpu has made kernels for


class Interface(NamedTuple):
    """Hold what `mw.program` says: engine, mesh text, the axes of each group, inputs, outputs and exchanges."""

    engine: str
    mesh: str
    groups: tuple[tuple[str, ...], ...]
    inputs: tuple[Port, ...]
    outputs: tuple[Port, ...]
    exchanges: tuple[ExchangeInfo, ...] = ()


def write_program(module: ir.Module, interface: Interface) -> None:
    """Put the `mw.program` op at the start of a module."""
    block = module.operation.regions[0].blocks[0]
    attributes = {
        "engine": ir.StringAttr.get(interface.engine),
        "mesh": ir.StringAttr.get(interface.mesh),
        "groups": ir.ArrayAttr.get([_texts(axes) for axes in interface.groups]),
        "inputs": ir.ArrayAttr.get([_port(p) for p in interface.inputs]),
        "outputs": ir.ArrayAttr.get([_port(p) for p in interface.outputs]),
        "exchanges": ir.ArrayAttr.get([_exchange(each) for each in interface.exchanges]),
    }
    b = OpBuilder(ir.InsertionPoint.at_block_begin(block), ir.Location.unknown())
    b.op("mw.program", **attributes)


def _texts(words: Sequence[str]) -> ir.ArrayAttr:
    return ir.ArrayAttr.get([ir.StringAttr.get(word) for word in words])


def _port(port: Port) -> ir.DictAttr:
    return ir.DictAttr.get(
        {
            "name": ir.StringAttr.get(port.name),
            "dtype": ir.StringAttr.get(port.dtype),
            "global_shape": ir.DenseI64ArrayAttr.get(port.global_shape),
            "local_shape": ir.DenseI64ArrayAttr.get(port.local_shape),
            "layout": ir.StringAttr.get(port.layout),
            **({"takes": i64(port.takes)} if port.takes is not None else {}),
            **({"weight": ir.StringAttr.get(port.weight)} if port.weight else {}),
            **({"length": ir.StringAttr.get(port.length)} if port.length else {}),
            **({"least": i64(port.least)} if port.least != 1 else {}),
            **({"lengths": _texts(port.lengths)} if port.lengths else {}),
            **({"merged": ir.DenseI64ArrayAttr.get(port.merged)} if port.merged else {}),
        }
    )


def _exchange(info: ExchangeInfo) -> ir.DictAttr:
    return ir.DictAttr.get(
        {
            "axes": _texts(info.axes),
            "source": ir.StringAttr.get(info.source),
            "target": ir.StringAttr.get(info.target),
            "shape": ir.DenseI64ArrayAttr.get(info.shape),
            "width": i64(info.width),
            "staging": i64(info.staging),
        }
    )


def program_op(module: ir.Module) -> ir.Operation | None:
    """Return the `mw.program` op of a module; None where `lower-collectives` has not run."""
    for view in module.operation.regions[0].blocks[0].operations:
        if view.operation.name == "mw.program":
            return view.operation
    return None


def erase_program(module: ir.Module) -> None:
    """Erase the `mw.program` op, which is nothing that LLVM knows."""
    op = program_op(module)
    if op is not None:
        op.erase()


def engine_of(module: ir.Module) -> str:
    """Return the engine that `mw.program` names. Raises CompileError where there is no such op."""
    return str(_needed(module).attributes["engine"].value)


def _needed(module: ir.Module) -> ir.Operation:
    op = program_op(module)
    if op is None:
        raise CompileError("no mw.program: lower-collectives makes it, and runs first")
    return op


def read_interface(module: ir.Module) -> Interface:
    """Return what `mw.program` says. Raises CompileError where there is none."""
    attributes = _needed(module).attributes
    inputs, outputs = (
        tuple(_read_port(entry) for entry in attributes[side]) for side in ("inputs", "outputs")
    )
    return Interface(
        attributes["engine"].value,
        attributes["mesh"].value,
        tuple(tuple(axis.value for axis in axes) for axes in attributes["groups"]),
        inputs,
        outputs,
        tuple(_read_exchange(entry) for entry in attributes["exchanges"]),
    )


def _read_port(attr: ir.DictAttr) -> Port:
    return Port(
        attr["name"].value, attr["dtype"].value, tuple(attr["global_shape"]),
        tuple(attr["local_shape"]), attr["layout"].value,
        attr["takes"].value if "takes" in attr else None,
        attr["weight"].value if "weight" in attr else "",
        attr["length"].value if "length" in attr else "",
        attr["least"].value if "least" in attr else 1,
        tuple(name.value for name in attr["lengths"]) if "lengths" in attr else (),
        tuple(attr["merged"]) if "merged" in attr else (),
    )  # fmt: skip


def _read_exchange(attr: ir.DictAttr) -> ExchangeInfo:
    return ExchangeInfo(
        tuple(axis.value for axis in attr["axes"]), attr["source"].value, attr["target"].value,
        tuple(attr["shape"]), attr["width"].value, attr["staging"].value,
    )  # fmt: skip


# What the code needs to be run.


@dataclass(frozen=True)
class CodeFacts:
    """Hold what the manifest and the other objects of a bundle are made from, besides the program's interface.

    arena_bytes, early_bytes, core_bytes, ops, collectives: as in the manifest. calls: the functions of the engine's
    collectives that the code calls. runs: the lengths in bytes of what they copy at a time. staging_bytes: what they
    need of a window that ranks share. libraries: those that the code itself needs. features: those of the
    processor that it asks for by name. ends: whether every call of the program ends for sure.
    marks: as in the manifest.
    """

    arena_bytes: int
    early_bytes: int
    core_bytes: int
    ops: tuple[OpInfo, ...]
    collectives: tuple[CollectiveInfo, ...]
    calls: tuple[str, ...]
    runs: frozenset[int]
    staging_bytes: int
    libraries: tuple[str, ...]
    ends: bool
    features: tuple[str, ...] = ()
    marks: tuple[OpInfo, ...] = ()


def write_code(module: ir.Module, facts: CodeFacts) -> None:
    """Put the facts on the `mw.program` of a module."""
    _needed(module).attributes[CODE] = ir.DictAttr.get(
        {
            "arena_bytes": i64(facts.arena_bytes),
            "early_bytes": i64(facts.early_bytes),
            "core_bytes": i64(facts.core_bytes),
            "ops": ir.ArrayAttr.get([_op(each) for each in facts.ops]),
            "collectives": ir.ArrayAttr.get([_collective(each) for each in facts.collectives]),
            "calls": _texts(facts.calls),
            "runs": ir.DenseI64ArrayAttr.get(sorted(facts.runs)),
            "staging_bytes": i64(facts.staging_bytes),
            "libraries": _texts(facts.libraries),
            "ends": ir.BoolAttr.get(facts.ends),
            "features": _texts(facts.features),
            "marks": ir.ArrayAttr.get([_op(each) for each in facts.marks]),
        }
    )


def read_code(module: ir.Module) -> CodeFacts:
    """Return the facts of a module. Raises CompileError where to-llvm has not run."""
    op = program_op(module)
    if op is None or CODE not in op.attributes:
        raise CompileError("no code in this program: to-llvm makes it, and runs first")
    code = op.attributes[CODE]
    return CodeFacts(
        arena_bytes=code["arena_bytes"].value,
        early_bytes=code["early_bytes"].value,
        core_bytes=code["core_bytes"].value,
        ops=tuple(map(_read_op, code["ops"])),
        collectives=tuple(
            CollectiveInfo(c["op"].value, tuple(a.value for a in c["axes"]), c["bytes"].value)
            for c in code["collectives"]
        ),
        calls=tuple(call.value for call in code["calls"]),
        runs=frozenset(code["runs"]),
        staging_bytes=code["staging_bytes"].value,
        libraries=tuple(library.value for library in code["libraries"]),
        ends=code["ends"].value,
        features=tuple(feature.value for feature in code["features"]),
        marks=tuple(map(_read_op, code["marks"])),
    )


def _op(op: OpInfo) -> ir.DictAttr:
    texts = {"name": ir.StringAttr.get(op.name), "where": ir.StringAttr.get(op.location)}
    return ir.DictAttr.get(
        {"id": i64(op.id), **texts, "bytes": i64(op.bytes), "axes": _texts(op.axes)}
    )


def _read_op(attr: ir.DictAttr) -> OpInfo:
    axes = tuple(axis.value for axis in attr["axes"])
    return OpInfo(
        attr["id"].value, attr["name"].value, attr["where"].value, attr["bytes"].value, axes
    )


def _collective(info: CollectiveInfo) -> ir.DictAttr:
    numbers = {"axes": _texts(info.axes), "bytes": i64(info.bytes)}
    return ir.DictAttr.get({"op": ir.StringAttr.get(info.op), **numbers})
