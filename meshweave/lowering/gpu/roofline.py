"""Tell what each launch of a program takes of a gpu, and how long memory and arithmetic need for it at least.

The roofline: Williams, Waterman, Patterson, CACM 52 (4), 2009.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator, Mapping
from typing import NamedTuple

from meshweave.device import CHIPS, Chip, GemmInfo
from meshweave.ir.expressions import Apply, needed
from meshweave.ir.scores.attention import SCORES, WEIGHTED
from meshweave.ir.scores.reduced import REDUCED
from meshweave.lowering.gpu.facts import Facts
from meshweave.lowering.gpu.families import registry as families
from meshweave.lowering.gpu.families.cublaslt import LibraryProduct
from meshweave.lowering.gpu.families.flash.nest import attention_of
from meshweave.lowering.gpu.families.flash.sums import sums_of
from meshweave.lowering.gpu.families.products import product_of
from meshweave.lowering.gpu.kernel import DeviceKernel, Target
from meshweave.lowering.gpu.toolchain.cubin import KernelTakes, kernels_of
from meshweave.lowering.gpu.toolchain.ptx import compile_kernels
from meshweave.lowering.gpu.toolchain.versions import has_llvm
from meshweave.lowering.host.program import LoweredProgram
from meshweave.lowering.nests.bind import LoopNest
from meshweave.lowering.nests.rows import KernelUnit
from meshweave.report import LaunchRow

# Of a multiprocessor; a warp gets them in pieces of 256, and warps come four at a time.
_REGISTERS = 65_536
_TENSORS = ("flash", "gemm_mma", "gemm_tf32", "gemm_wgmma")  # families that use tensor cores
_MOVES = ("arith.extf", "arith.truncf", "arith.select", "arith.bitcast", SCORES, WEIGHTED, REDUCED)


class WorkOfLaunch(NamedTuple):
    """Count the bytes that a launch touches at least, and its floating operations, of which type."""

    nbytes: int
    flops: int
    kind: str


def launch_rows(program: LoweredProgram, chip: str) -> tuple[LaunchRow, ...]:
    """Return a row for each kernel and library product that the units of a program launch, in order.

    Kernels are compiled for it, where the toolchain is installed. What copies for exchanges, loops over single
    elements, and what does products that the library has no algorithm for, are not among them.
    """
    found = list(_launches(program, chip))
    kernels = [made for made, _, _ in found if isinstance(made, DeviceKernel)]
    takes: dict[str, KernelTakes] = {}
    for module in dict.fromkeys(compile_kernels(kernels, chip)) if kernels and has_llvm() else ():
        if module.cubin is not None:
            takes |= kernels_of(module.cubin, CHIPS[chip])
    times = Counter((made, work) for made, work, _ in found)
    first: dict[tuple[DeviceKernel | GemmInfo, WorkOfLaunch], str] = {}
    for made, work, where in found:
        first.setdefault((made, work), where)
    return tuple(
        _row(made, work, times[made, work], where, takes, CHIPS[chip])
        for (made, work), where in first.items()
    )


def _launches(
    program: LoweredProgram, chip: str
) -> Iterator[tuple[DeviceKernel | GemmInfo, WorkOfLaunch, str]]:
    chosen = families.Chosen(Target(chip))
    for unit, facts in chosen.launches(program):
        made = chosen.of(unit, facts)
        of = made.info if isinstance(made, LibraryProduct) else chosen.kernels[made]
        yield of, work_of(unit, facts), unit.where


def _row(
    made: DeviceKernel | GemmInfo, work: WorkOfLaunch, times: int, where: str,
    takes: Mapping[str, KernelTakes], chip: Chip,
) -> LaunchRow:  # fmt: skip
    seconds, bound = least_seconds(made, work, chip)
    if isinstance(made, GemmInfo):
        sizes = "x".join(str(n) for n in (made.batch, made.m, made.n, made.k) if n != 1)
        name = f"cublaslt {sizes} {made.dtype}"
        return LaunchRow(
            name, times, 0, 0, None, 0, None, None, work.nbytes, work.flops, seconds, bound, where
        )
    threads, own = math.prod(made.block), takes.get(made.entry)
    blocks = occupancy = None
    shared = made.shared_bytes + (own.shared_bytes if own else 0)
    if own is not None:
        blocks = blocks_at_a_time(threads, own.registers, shared, chip)
        occupancy = blocks * -(-threads // 32) * 32 / chip.threads
    return LaunchRow(
        made.entry, times, math.prod(made.grid), threads, own.registers if own else None, shared,
        blocks, occupancy, work.nbytes, work.flops, seconds, bound, where,
    )  # fmt: skip


def blocks_at_a_time(threads: int, registers: int, shared_bytes: int, chip: Chip) -> int:
    """Return how many blocks of a kernel a multiprocessor has at a time.

    threads, shared_bytes: of a block; registers: of a thread [CUDA C++ Programming Guide, compute capabilities].
    """
    warps = -(-threads // 32)
    of_warp = -(-registers * 32 // 256) * 256
    by_registers = _REGISTERS // max(1, of_warp) // 4 * 4 // warps
    unit = 128 if chip.capability >= (8, 0) else 256
    piece = -(-(shared_bytes + chip.reserved_bytes) // unit) * unit
    by_shared = (chip.shared_bytes + chip.reserved_bytes) // piece if piece else chip.blocks
    return min(chip.blocks, chip.threads // (32 * warps), by_registers, by_shared)


def least_seconds(
    made: DeviceKernel | GemmInfo, work: WorkOfLaunch, chip: Chip
) -> tuple[float | None, str]:
    """Return the seconds that a launch takes at least on the GPU whose data sheet is known, and what bounds it."""
    rates = chip.rates
    if rates is None:
        return None, ""
    kind = work.kind
    if isinstance(made, GemmInfo):
        kind = "tf32" if made.compute == "tf32" else made.dtype
    elif made.family == "gemm_tf32":
        kind = "tf32"
    with_tensors = isinstance(made, GemmInfo) or made.family in _TENSORS
    plain = rates.f64 if kind == "f64" else rates.f32
    rate = dict(rates.tensor).get(kind, plain) if with_tensors else plain
    memory, arithmetic = work.nbytes / rates.memory, work.flops / rate
    return max(memory, arithmetic), "memory" if memory >= arithmetic else "arithmetic"


def work_of(unit: KernelUnit, facts: Facts) -> WorkOfLaunch:
    """Count what a unit does. Results that only the unit itself reads count as kept in registers.

    Of a buffer that is read at computed places, or through several pointers, all that can be reached counts once for
    each pointer. An attention has all of its keys, whatever its mask leaves out.
    """
    roots, written = unit.pointers.roots, unit.pointers.written
    inside = {k for k in written & set(facts.dead) if len(unit.nests) > 1}
    gone = {roots[k] for k in inside}
    reads, writes = dict[int, int](), dict[int, int]()
    for nest in unit.nests:
        for node in nest.loads:
            if roots[node.access.pointer] not in gone:
                _reach(reads, node.access.pointer, nest, node.access.strides)
        for gather in nest.gathers:
            reads[gather.access.pointer] = max(
                reads.get(gather.access.pointer, 0), math.prod(nest.sizes)
            )
        for store in nest.stores:
            if roots[store.access.pointer] not in gone:
                _reach(writes, store.access.pointer, nest, store.access.strides)
                if store.reads:
                    _reach(reads, store.access.pointer, nest, store.access.strides)
    width = [place.nbytes for place in unit.pointers.places]
    own = {k for k in reads if roots[k] in {roots[w] for w in writes} and len(unit.nests) > 1}
    nbytes = sum(n * width[k] for k, n in reads.items() if k not in own)
    nbytes += sum(n * width[k] for k, n in writes.items())
    kinds = Counter[str]()
    for nest in unit.nests:
        kinds.update(_flops(nest))
    main = kinds.most_common(1)[0][0] if kinds else "f32"
    return WorkOfLaunch(nbytes, sum(kinds.values()), main)


def _reach(found: dict[int, int], pointer: int, nest: LoopNest, strides: tuple[int, ...]) -> None:
    """Note how many elements an access of a nest reaches."""
    pairs = [(n, abs(s)) for n, s in zip(nest.sizes, strides) if s]
    span = 1 + sum((n - 1) * s for n, s in pairs)
    count = min(math.prod(n for n, _ in pairs), span) if 0 not in nest.sizes else 0
    found[pointer] = max(found.get(pointer, 0), count)


def _flops(nest: LoopNest) -> dict[str, int]:
    """Count the floating operations of a nest by their type; those of products by the type of the factors."""
    attention = attention_of(nest)
    if attention is not None:
        values, inner = attention.values, attention.scores.depth
        each = 2 * values.batch.count * values.m.count * values.depth
        return {values.dtype: each * (inner + values.n.count)}
    sums = sums_of(nest)
    if sums is not None:
        made, scores = sums.result, sum(product.depth for product in sums.scores.values())
        each = 2 * made.batch.count * made.m.count * made.depth * sums.heads.count
        return {made.dtype: each * (scores + (made.n.count if sums.weighted else 0))}
    product = product_of(nest)
    if product is not None:
        return {product.dtype: 2 * math.prod(nest.sizes)}
    found = Counter[str]()
    for number in needed(nest.code, [store.value for store in nest.stores]):
        node = nest.code[number]
        if isinstance(node, Apply) and node.name not in _MOVES and _is_float(str(node.type)):
            found[str(node.type)] += math.prod(nest.sizes)
    return found


def _is_float(kind: str) -> bool:
    return kind in ("f64", "f32", "f16", "bf16")
