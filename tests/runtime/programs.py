"""Tiny programs for the engines: a `step` in the LLVM dialect that calls collectives itself."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from meshweave.abi import StatusRow
from meshweave.bundle import Bundle, Manifest, OpInfo, Port, slots
from meshweave.layout import Layout, Mesh
from meshweave.lowering.cpu.collectives.objects import collectives_object, compile_text, runtime_of
from meshweave.runtime import engine
from meshweave.runtime.mpi.engine import MpiEngine

PortLike = Port | tuple[str, tuple[int, ...]]
ENGINES = ("local", "mpi", "library")  # of them, two are engine mpi


def started(name: str, timeout: float = 60.0):
    """An engine of ENGINES: "library" is engine mpi whose collectives are MPI's own."""
    return MpiEngine(timeout, window=False) if name == "library" else engine(name, timeout=timeout)


@dataclass(frozen=True)
class CallOf:
    """`symbol(ctx, group, src, dst, *numbers)`.

    src and dst are ("input" or "output", index) or ("arena", byte offset).

    A number that is a tuple is a table: the rank's member index in the group picks its value.
    area: of a start or a wait: (byte offset in the arena, bytes that are sent).
    """

    symbol: str
    group: int
    src: tuple[str, int]
    dst: tuple[str, int]
    numbers: tuple[int | tuple[int, ...], ...]
    area: tuple[int, int] | None = None


def program(
    mesh: str,
    engine: str,
    groups: Sequence[tuple[str, ...]],
    inputs: Sequence[PortLike],
    outputs: Sequence[PortLike],
    calls: Sequence[CallOf | str],
    arena_bytes: int = 0,
    externals: Sequence[str] = (),
    staging: int = 0,
    early_bytes: int = 0,
) -> Bundle:
    """A bundle whose step makes `calls` in order; text among them is taken into the body.

    inputs, outputs: each port, or (dtype, local shape) of a replicated one. staging: bytes for operands in memory of
    the user. early_bytes: of the arena, at its end, for areas of collectives started early.
    """
    ports = [_ports("in", inputs), _ports("out", outputs)]
    ops = tuple(
        OpInfo(number, call.symbol, f"test.mlir:{number}:1", 256 * number)
        for number, call in enumerate(calls, 1)
        if isinstance(call, CallOf)
    )
    manifest = Manifest(
        mesh=mesh, engine=engine, inputs=ports[0], outputs=ports[1], arena_bytes=arena_bytes,
        early_bytes=early_bytes, groups=tuple(groups), ops=ops, libraries=runtime_of(engine).libraries,
    )  # fmt: skip
    symbols = {call.symbol for call in calls if isinstance(call, CallOf)}
    step = compile_text(_step(manifest, Mesh.parse(mesh), calls), [*symbols, *externals])
    objects = [step, *([collectives_object(engine, symbols, staging)] if symbols else [])]
    return Bundle(manifest, tuple(objects))


def _ports(prefix: str, ports: Sequence[PortLike]) -> tuple[Port, ...]:
    return tuple(
        port
        if isinstance(port, Port)
        else Port(f"{prefix}{index}", *port, port[1], str(Layout.replicated(len(port[1]))))
        for index, port in enumerate(ports)
    )


def _called(number: int, call: CallOf, arguments: Sequence[str], types: str) -> str:
    """Text of call `number`: announced before and after; step returns its code where it fails."""
    return f"""
  %id{number} = llvm.mlir.constant({number} : i64) : i64
  %count{number} = llvm.load %count_at : !llvm.ptr -> i64
  %place{number} = llvm.and %count{number}, %last : i64
  %entry{number} = llvm.getelementptr %ring[%place{number}] : (!llvm.ptr, i64) -> !llvm.ptr, i64
  llvm.store volatile %id{number}, %entry{number} : i64, !llvm.ptr
  %next{number} = llvm.add %count{number}, %one : i64
  llvm.store volatile %next{number}, %count_at : i64, !llvm.ptr
  %group{number} = llvm.mlir.constant({call.group} : i64) : i64
  %rc{number} = llvm.call @{call.symbol}(%ctx, %group{number}, %src{number}, %dst{number},
    {", ".join(arguments)})
    : ({types}) -> i32
  %code{number} = llvm.mlir.constant({number << 16} : i32) : i32
  %all{number} = llvm.or %rc{number}, %code{number} : i32
  %fine{number} = llvm.icmp "eq" %rc{number}, %zero : i32
  llvm.cond_br %fine{number}, ^op{number}, ^fail(%all{number} : i32)
^op{number}:
  llvm.store volatile %next{number}, %ended : i64, !llvm.ptr"""


def _step(manifest: Manifest, mesh: Mesh, calls: Sequence[CallOf | str]) -> str:
    table = slots(manifest)
    head, body = [], []

    def load(name: str, slot: int, kind: str = "!llvm.ptr") -> str:
        return f"""
  %{name}_at = llvm.getelementptr %ctx[{slot}] : (!llvm.ptr) -> !llvm.ptr, i64
  %{name} = llvm.load %{name}_at : !llvm.ptr -> {kind}"""

    def pointer(name: str, place: tuple[str, int]) -> str:
        where, index = place
        if where == "arena":
            return f"""{load(name + "_base", table.arena)}
  %{name} = llvm.getelementptr %{name}_base[{index}] : (!llvm.ptr) -> !llvm.ptr, i8"""
        return load(name, table.input(index) if where == "input" else table.output(index))

    declared = {}
    for number, call in enumerate(calls, 1):
        if isinstance(call, str):
            body.append(call)
            continue
        body.append(pointer(f"src{number}", call.src) + pointer(f"dst{number}", call.dst))
        body.append(load(f"member{number}", table.member(call.group), "i64"))
        arguments = []
        for position, value in enumerate(call.numbers):
            name = f"%n{number}_{position}"
            body.append(_number(name, value, f"%member{number}"))
            arguments.append(name)
        types = "!llvm.ptr, i64, !llvm.ptr, !llvm.ptr" + ", i64" * len(arguments)
        if call.area is not None:
            body.append(pointer(f"area{number}", ("arena", call.area[0])))
            body.append(_number(f"%sent{number}", call.area[1], ""))
            arguments += [f"%area{number}", f"%sent{number}"]
            types += ", !llvm.ptr, i64"
        declared[call.symbol] = f"llvm.func @{call.symbol}({types}) -> i32"
        body.append(_called(number, call, arguments, types))
    head.append(load("status", table.status) + load("rank", table.rank, "i64"))
    return f"""module {{
{manifest.constant}llvm.func @sleep(i32) -> i32
llvm.func @usleep(i32) -> i32
llvm.func @_exit(i32)
{chr(10).join(declared.values())}
llvm.func @step(%ctx: !llvm.ptr) -> i32 {{
  %zero = llvm.mlir.constant(0 : i32) : i32
  %one = llvm.mlir.constant(1 : i64) : i64
  %last = llvm.mlir.constant({StatusRow.ENTRIES - 1} : i64) : i64{"".join(head)}
  %count_at = llvm.getelementptr %status[{StatusRow.STARTED}] : (!llvm.ptr) -> !llvm.ptr, i64
  %ring = llvm.getelementptr %status[{StatusRow.RING}] : (!llvm.ptr) -> !llvm.ptr, i64
  %ended = llvm.getelementptr %status[{StatusRow.ENDED}] : (!llvm.ptr) -> !llvm.ptr, i64{"".join(body)}
  llvm.return %zero : i32
^fail(%code: i32):
  llvm.return %code : i32
}}
}}"""


def _number(name: str, value: int | tuple[int, ...], member: str) -> str:
    if isinstance(value, int):
        return f"\n  {name} = llvm.mlir.constant({value} : i64) : i64"
    text = f"\n  {name}_0 = llvm.mlir.constant({value[0]} : i64) : i64"
    stem = name[1:]
    for index, entry in enumerate(value[1:], 1):
        last = name if index == len(value) - 1 else f"{name}_{index}"
        text += f"""
  %{stem}_k{index} = llvm.mlir.constant({index} : i64) : i64
  %{stem}_v{index} = llvm.mlir.constant({entry} : i64) : i64
  %{stem}_is{index} = llvm.icmp "eq" {member}, %{stem}_k{index} : i64
  {last} = llvm.select %{stem}_is{index}, %{stem}_v{index}, {name}_{index - 1} : i1, i64"""
    if len(value) == 1:
        text = text.replace(f"{name}_0", name)
    return text


def on_rank(rank: int, action: str, tag: str) -> str:
    """Text of a step: on one rank only, `action` (which may use names that end in `tag`)."""
    return f"""
  %only{tag} = llvm.mlir.constant({rank} : i64) : i64
  %is{tag} = llvm.icmp "eq" %rank, %only{tag} : i64
  llvm.cond_br %is{tag}, ^do{tag}, ^skip{tag}
^do{tag}:{action}
  llvm.br ^skip{tag}
^skip{tag}:"""


def sleeps(seconds: int, tag: str = "s") -> str:
    """Text: sleep."""
    return f"""
  %seconds{tag} = llvm.mlir.constant({seconds} : i32) : i32
  %slept{tag} = llvm.call @sleep(%seconds{tag}) : (i32) -> i32"""


def exits(status: int, tag: str = "e") -> str:
    """Text: end the process."""
    return f"""
  %status{tag} = llvm.mlir.constant({status} : i32) : i32
  llvm.call @_exit(%status{tag}) : (i32) -> ()"""
