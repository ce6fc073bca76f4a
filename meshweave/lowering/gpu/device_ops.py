"""Write device kernels and library products as ops, and read them back: `gpu.module`, `gpu.launch_func`, `mw.product`.

Kernel number k of a program is the one `gpu.func` of `gpu.module @kernel_k`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import fields, replace
from typing import NamedTuple

from meshweave.device import GemmInfo
from meshweave.errors import CompileError
from meshweave.ir.bindings import ir
from meshweave.ir.build import OpBuilder, i64, segments
from meshweave.ir.locations import location_text
from meshweave.lowering.gpu.kernel import DeviceKernel
from meshweave.lowering.gpu.writer import GLOBAL
from meshweave.transforms.base import ops_of

CONTAINER = "gpu.container_module"  # attribute of a module that has `gpu.module`s
COPIES = "copies"  # attribute of an exchange: the kernel that copies
SPARE = (
    "spare"  # attribute of a product: the kernel that does it where the library has no algorithm
)
COPY_FAMILY, EXCHANGE = "copies", "an exchange"  # of a kernel that copies; where it comes from
_LAUNCH, _PRODUCT = "gpu.launch_func", "mw.product"
_ONES = (1, 1, 1)


class PlacedKernel(NamedTuple):
    """Name a kernel of a program, and the place in the source that it was made for first."""

    kernel: DeviceKernel
    where: str


class LaunchShape(NamedTuple):
    """Say how a kernel is launched; shared_bytes: dynamic shared memory."""

    grid: tuple[int, int, int]
    block: tuple[int, int, int]
    shared_bytes: int


def kernel_symbol(number: int, kernel: DeviceKernel) -> ir.SymbolRefAttr:
    """Return the symbol of kernel `number` of a program."""
    return ir.SymbolRefAttr.get([f"kernel_{number}", kernel.entry])


def kernel_number(symbol: ir.Attribute) -> int:
    """Return the number of the kernel of a symbol."""
    assert isinstance(symbol, ir.SymbolRefAttr)
    return int(symbol.value[0].removeprefix("kernel_"))


def write_kernels(module: ir.Module, kernels: Sequence[DeviceKernel], bodies: bool) -> None:
    """Put each kernel in a `gpu.module` before the functions. bodies: with its code, else with its signature alone."""
    first = next(o for o in module.body.operations if o.operation.name == "func.func")
    texts = []
    for number, kernel in enumerate(kernels):
        names = f'family = "{kernel.family}", numerics = "{kernel.numerics}"'
        text = kernel.text if bodies else _signature(kernel.text)
        texts.append(f"gpu.module @kernel_{number} attributes {{{names}}} {{\n{text}}}\n")
    try:
        parsed = ir.Module.parse(f"module attributes {{{CONTAINER}}} {{\n{''.join(texts)}}}")
    except ir.MLIRError as error:
        raise CompileError(f"kernels for gpus: {error}") from None
    for op in list(parsed.body.operations):
        op.operation.detach_from_parent()
        ir.InsertionPoint(first).insert(op)
    module.operation.attributes[CONTAINER] = ir.UnitAttr.get()


def _signature(text: str) -> str:
    """Return the kernel of a text without its code."""
    head = next(line for line in text.splitlines() if line.startswith("gpu.func "))
    return f"{head}\ngpu.return\n}}\n"


def read_kernels(module: ir.Module, texts: Mapping[int, str]) -> list[PlacedKernel]:
    """Return the kernels of a module by their numbers. texts: the code of those whose body is elsewhere."""
    launches: dict[int, ir.Operation] = {}
    for name, key in ((_LAUNCH, "kernel"), (_PRODUCT, SPARE)):
        for view in ops_of(module.operation, name):
            launches.setdefault(kernel_number(view.operation.attributes[key]), view.operation)
    ops = [o.operation for o in module.body.operations if o.operation.name == "gpu.module"]
    return [
        _read(op, launches.get(number), texts.get(number)) for number, op in enumerate(ops)
    ]  # fmt: skip


def _read(op: ir.Operation, launch: ir.Operation | None, text: str | None) -> PlacedKernel:
    block = op.regions[0].blocks[0]
    function = next(o.operation for o in block.operations if o.operation.name == "gpu.func")
    if text is None:
        text = "\n".join(o.operation.get_asm(use_local_scope=True) for o in block.operations)
    types = [str(argument.type) for argument in function.regions[0].blocks[0].arguments]
    family = op.attributes["family"].value
    block_size = tuple(function.attributes["nvvm.reqntid"])
    shape = LaunchShape(_ONES, block_size, 0)
    if launch is not None and launch.name == _LAUNCH:
        shape = launch_shape(launch)
    kernel = DeviceKernel(
        function.attributes["sym_name"].value, text, *shape,
        tuple("ptr" if t == GLOBAL else t for t in types), family, op.attributes["numerics"].value,
    )  # fmt: skip
    where = EXCHANGE if family == COPY_FAMILY else location_text((launch or op).location)
    return PlacedKernel(kernel, where)


def launch_shape(launch: ir.Operation) -> LaunchShape:
    """Return the sizes of a `gpu.launch_func`, all of them constants."""
    sizes = [_constant(value, launch) for value in list(launch.operands)[:6]]
    shared = launch.attributes["operandSegmentSizes"][10]
    nbytes = _constant(launch.operands[6], launch) if shared else 0
    grid, block = (sizes[0], sizes[1], sizes[2]), (sizes[3], sizes[4], sizes[5])
    return LaunchShape(grid, block, nbytes)


def _constant(value: ir.Value, launch: ir.Operation) -> int:
    owner = value.owner
    if isinstance(owner, ir.Block) or owner.operation.name != "arith.constant":
        raise CompileError(f"{_LAUNCH}: sizes must be constants", location_text(launch.location))
    return int(owner.operation.attributes["value"].value)


def launch(
    b: OpBuilder, symbol: ir.SymbolRefAttr, sizes: Sequence[ir.Value],
    shared: Sequence[ir.Value], arguments: Sequence[ir.Value],
) -> None:  # fmt: skip
    """Write a `gpu.launch_func`. sizes: of the grid, then of a block; shared: bytes of dynamic memory, if any."""
    counts = segments(0, *([1] * 6), 0, 0, 0, len(shared), len(arguments), 0)
    operands = [*sizes, *shared, *arguments]
    b.op(_LAUNCH, [], operands, kernel=symbol, operandSegmentSizes=counts)


_PLAIN = GemmInfo("", 0, 0, 0, 0, 0, 0)
_ALWAYS = ("dtype", "m", "n", "k", "lda", "ldb", "ldd")


def product(
    b: OpBuilder, info: GemmInfo, operands: Sequence[ir.Value], spare: ir.SymbolRefAttr
) -> None:
    """Write an `mw.product` of addresses (A, B, D). What is as in most products is left out.

    spare: the kernel that does it where the library has no algorithm.
    """
    write = {str: ir.StringAttr.get, bool: ir.BoolAttr.get, int: i64}
    attributes = {
        name: write[type(value)](value)
        for name, value in vars(info).items()
        if name in _ALWAYS or value != getattr(_PLAIN, name)
    }
    b.op(_PRODUCT, [], operands, **attributes, **{SPARE: spare})


def read_product(op: ir.Operation) -> GemmInfo:
    """Return what an `mw.product` says."""
    names = [field.name for field in fields(GemmInfo)]
    said = {name: op.attributes[name].value for name in names if name in op.attributes}
    return replace(_PLAIN, **said)
