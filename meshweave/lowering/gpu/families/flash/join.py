"""Put the parts of an attention of few queries together: a thread for each element of the result."""

from __future__ import annotations

import math
from collections.abc import Sequence

from meshweave.hints.fast_paths import DETERMINISTIC
from meshweave.lowering.gpu.facts import Facts
from meshweave.lowering.gpu.families.flash.attention import LOG2E
from meshweave.lowering.gpu.families.flash.kernel import PartLayout
from meshweave.lowering.gpu.families.flash.nest import AttentionNest
from meshweave.lowering.gpu.families.gemm.results import Results
from meshweave.lowering.gpu.families.launch import frame_for, global_thread, threads_for
from meshweave.lowering.gpu.kernel import DeviceKernel
from meshweave.lowering.nests.rows import KernelUnit
from meshweave.lowering.writer import Value


def joining_kernel(
    unit: KernelUnit, attention: AttentionNest, facts: Facts, pieces: int
) -> DeviceKernel:
    """Return the kernel: what a part has summed shrinks to the largest score of all, and is divided at the end."""
    product, parts = attention.values, PartLayout.of(attention, pieces)
    total = product.batch.count * product.m.count * product.n.count
    threads = threads_for(total)
    blocks = -(-total // threads)
    frame = frame_for("flash", unit, facts, threads, index="i64")
    writer, results = frame.writer, Results(frame, unit, product, facts)
    number, scratch = global_thread(frame), frame.pointers[-1]
    by = writer.constant(attention.factor * LOG2E, "f32")
    low, zero = writer.constant(-math.inf, "f32"), writer.constant(0.0, "f32")

    def element() -> None:
        column, row = number % product.n.count, number // product.n.count
        sums = writer.offset(scratch, row * (parts.each * parts.width * 4) + column * 4)
        beside = writer.offset(writer.offset(scratch, parts.sums), row * (parts.each * 8))

        def seen(k: Value) -> list[Value]:
            pair = writer.load(writer.offset(beside, k * 8), "vector<2xf32>", 8)
            return [writer.lane(pair, 0), writer.lane(pair, 1)]

        def larger(k: Value, held: Sequence[Value]) -> list[Value]:
            return [writer.larger(held[0], seen(k)[0])]

        (most,) = writer.for_(0, parts.each, 1, [low], larger, "i64")
        taken = writer.select(writer.compare("oeq", most, low), zero, writer.negative(most * by))

        def add(k: Value, held: Sequence[Value]) -> list[Value]:
            part, weights = seen(k)
            share = writer.exp2(writer.fma(part, by, taken))
            value = writer.load(writer.offset(sums, k * (parts.width * 4)), "f32")
            return [writer.fma(value, share, held[0]), writer.fma(weights, share, held[1])]

        found, weights = writer.for_(0, parts.each, 1, [zero, zero], add, "i64")
        result = found / weights
        if attention.zeros:
            result = writer.select(writer.compare("oeq", weights, zero), zero, result)
        index: list[Value | None] = [None] * len(product.nest.sizes)
        batch, inside = row // product.m.count, row % product.m.count
        for loops, at in ((product.batch, batch), (product.m, inside), (product.n, column)):
            for dim, digit in zip(loops.dims, frame.digits(at, loops.sizes)):
                index[dim] = digit
        results.element(index, result)

    ragged = writer.compare("ult", number, total) if blocks * threads != total else None
    writer.where(ragged, element)
    return DeviceKernel.of(writer, blocks, "flash", DETERMINISTIC)
