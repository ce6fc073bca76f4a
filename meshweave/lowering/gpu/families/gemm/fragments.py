"""Read from shared memory what each lane holds of a tile, and multiply it on tensor cores (mma.sync).

A fragment is a tile of 16 rows, or of 8 columns, by one step of depth.
"""

from __future__ import annotations

from collections.abc import Sequence

from meshweave.lowering.gpu.families.gemm.tiles import OperandTile
from meshweave.lowering.gpu.writer import DeviceWriter
from meshweave.lowering.writer import Value

STEP = 32  # bytes of depth that one mma takes
_SUMS = "!llvm.struct<(f32, f32, f32, f32)>"


class Fragments:
    """Write the reads of fragments and their products. dtype: of the elements, f16, bf16, or f32 rounded to tf32."""

    def __init__(self, writer: DeviceWriter, lane: Value, dtype: str) -> None:
        self.writer, self.lane, self.dtype = writer, lane, dtype
        self.nbytes = 4 if dtype == "f32" else 2

    def multiply(
        self, rows: Sequence[Sequence[Value]], columns: Sequence[Sequence[Value]], sums: list[Value]
    ) -> list[Value]:
        """Multiply all tiles of 16 by 8, in an order in which neighbours share a fragment."""
        sums, count = list(sums), len(columns)
        for i, row in enumerate(rows):
            for j in range(count) if i % 2 == 0 else reversed(range(count)):
                at = (i * count + j) * 4
                sums[at : at + 4] = self._mma(row, columns[j], sums[at : at + 4])
        return sums

    def _mma(self, a: Sequence[Value], b: Sequence[Value], sums: Sequence[Value]) -> list[Value]:
        kind = {"f32": "tf32"}.get(self.dtype, self.dtype)
        parts = [", ".join(v.name for v in values) for values in (a, b, sums)]
        settings = (
            "layoutA = #nvvm.mma_layout<row>, layoutB = #nvvm.mma_layout<col>, "
            f"shape = #nvvm.shape<m = 16, n = 8, k = {STEP // self.nbytes}>, "
            f"multiplicandAPtxType = #nvvm.mma_type<{kind}>, "
            f"multiplicandBPtxType = #nvvm.mma_type<{kind}>"
        )
        made = self.writer.let(
            f"nvvm.mma.sync A[{parts[0]}] B[{parts[1]}] C[{parts[2]}] {{{settings}}} : "
            f"({a[0].type}, {b[0].type}, f32) -> {_SUMS}",
            _SUMS,
        )
        return [self.writer.field(made, k, "f32") for k in range(4)]

    def rows(
        self, tile: OperandTile, place: Value, first: Value, count: int, step: int
    ) -> list[list[Value]]:
        """Return four registers for each 16 of `count` rows from `first` on, of the tile that lies at `place`.

        They are rows 0-7 and 8-15 of the first half of the step, then of the second half.
        """
        lane, found = self.lane, []
        for i in range(count // 16):
            begin = first + i * 16
            if tile.padded:
                found.append(
                    self._single(place, tile, begin, step, ((0, 0), (8, 0), (0, 4), (8, 4)))
                )
            elif tile.source.by_depth:
                line = begin + (lane & 15)
                found.append(self._matrices(place, tile, line, (lane >> 4) + 2 * step, False))
            else:
                line = (lane & 7) + ((lane >> 4) << 3) + 16 * step
                chunk = ((lane >> 3) & 1) + (begin >> 3)
                found.append(self._matrices(place, tile, line, chunk, True))
        return found

    def columns(
        self, tile: OperandTile, place: Value, first: Value, count: int, step: int | Value
    ) -> list[list[Value]]:
        """Return two registers for each 8 columns: the first and the second half of the step."""
        lane, found = self.lane, []
        for j in range(count // 16):
            begin = first + j * 16
            if tile.padded:
                assert isinstance(step, int), "steps of f32 are written out"
                for more in (0, 8):
                    places = ((more, 0), (more, 4))
                    found.append(self._single(place, tile, begin, step, places))
                continue
            if tile.source.by_depth:
                line = (lane & 7) + ((lane >> 4) << 3) + begin
                chunk = ((lane >> 3) & 1) + step * 2
            else:
                line, chunk = (lane & 15) + step * 16, (lane >> 4) + (begin >> 3)
            four = self._matrices(place, tile, line, chunk, not tile.source.by_depth)
            found += [four[:2], four[2:]]
        return found

    def _matrices(
        self, place: Value, tile: OperandTile, line: Value, chunk: Value, transpose: bool
    ) -> list[Value]:
        writer = self.writer
        at = line * tile.pitch + (tile.swizzled(chunk, line) << 4)
        words = writer.load_matrices(writer.offset(place, at), transpose)
        return [self._operand(word) for word in words]

    def _single(
        self,
        place: Value,
        tile: OperandTile,
        first: Value,
        step: int,
        places: Sequence[tuple[int, int]],
    ) -> list[Value]:
        """Load elements of 4 bytes one by one. places: row and depth beyond those of the lane."""
        writer, lane = self.writer, self.lane
        start = (lane & 3) * tile.pitch + (first + (lane >> 2)) * 4
        pointer = writer.offset(place, start)
        return [
            self._operand(
                writer.load(writer.offset(pointer, (8 * step + k) * tile.pitch + row * 4), "i32")
            )
            for row, k in places
        ]

    def _operand(self, word: Value) -> Value:
        """Return a register as mma takes it; f32 rounded to tf32."""
        writer = self.writer
        if self.dtype == "f16":
            return writer.convert("llvm.bitcast", word, "vector<2xf16>")
        if self.dtype == "f32":
            number = writer.convert("llvm.bitcast", word, "f32")
            return writer.let(
                f"nvvm.convert.float.to.tf32 {number.name} {{rnd = #nvvm.fp_rnd_mode<rna>}}",
                "i32",
            )
        return word

    def packed(self, low: Value, high: Value) -> Value:
        """Return two numbers in f32, rounded, as one register of a fragment."""
        pair = self.writer.vector([low, high])
        made = self.writer.convert("arith.truncf", pair, f"vector<2x{self.dtype}>")
        return made if self.dtype == "f16" else self.writer.convert("llvm.bitcast", made, "i32")
