"""Multiply tiles by the tensor cores of Hopper (wgmma, sm_90a alone), 64 rows a warpgroup; sums in f32.

B, and A where it is not in registers, are read from shared memory at places that descriptors name. A product is under
way from its instruction to the wait for its group: until then nothing touches its registers.
"""

from __future__ import annotations

from collections.abc import Sequence

from meshweave.lowering.gpu.families.gemm.tiles import CHUNK, OperandTile
from meshweave.lowering.gpu.writer import DeviceWriter
from meshweave.lowering.writer import Value

GROUP = 128  # threads of a warpgroup
ROWS, STEP = 64, 16  # of C and of depth, that one wgmma takes
NBYTES = 2
_SWIZZLED = 1 << 62  # in a descriptor: lines of 128 bytes, chunks of 16 swizzled
_ATOM = 1024  # bytes of eight such lines


class WarpgroupProducts:
    """Write products of tiles of f16 or bf16."""

    def __init__(self, writer: DeviceWriter, dtype: str) -> None:
        self.writer, self.dtype = writer, dtype

    def begin(self) -> None:
        """Order what has been done to registers before the products that follow."""
        self.writer.add("nvvm.wgmma.fence.aligned")

    def commit(self) -> None:
        """Make a group of the products begun since the last call."""
        self.writer.add("nvvm.wgmma.commit.group.sync.aligned")

    def wait(self, pending: int) -> None:
        """Wait until at most `pending` of this warpgroup's groups of products are under way."""
        self.writer.add(f"nvvm.wgmma.wait.group.sync.aligned {pending}")

    def descriptor(self, tile: OperandTile, place: Value) -> Value:
        """Return how wgmma finds a matrix: address, bytes from panel to panel, bytes from eight lines to the next."""
        writer = self.writer
        address = (writer.convert("llvm.ptrtoint", place, "i32") & 0x3FFFF) >> 4
        apart = tile.panel or CHUNK
        known = _SWIZZLED | (_ATOM >> 4) << 32 | (apart >> 4) << 16
        return writer.wide(address) | known

    def at_step(self, tile: OperandTile, descriptor: Value, step: int) -> Value:
        """Return the descriptor of what wgmma number `step` takes of a tile."""
        apart = STEP * NBYTES if tile.source.by_depth else STEP * tile.pitch
        return descriptor + (apart * step >> 4)

    def row_bytes(self, tile: OperandTile, rows: Value) -> Value:
        """Return the bytes from a tile's first row to another, a multiple of 64."""
        return rows * tile.pitch if tile.source.by_depth else (rows // ROWS) * tile.panel

    def multiply(
        self, a: tuple[OperandTile, Value], b: tuple[OperandTile, Value], sums: Value, columns: int,
        fresh: bool = False,
    ) -> Value:  # fmt: skip
        """Begin to add a product to sums, a struct of f32, or to none where `fresh`. a, b: tiles and descriptors."""
        across = ["row" if a[0].source.by_depth else "col"]
        across += ["col" if b[0].source.by_depth else "row"]
        factors = [
            f"{name}[<{self.dtype}>, #nvvm.wgmma_scale_in<one>, <{order}>]"
            for name, order in zip("AB", across)
        ]
        begins = "zero" if fresh else "one"
        text = (
            f"nvvm.wgmma.mma_async {a[1].name}, {b[1].name}, {sums.name}, "
            f"#nvvm.shape<m = {ROWS}, n = {columns}, k = {STEP}>, "
            f"D[<f32>, #nvvm.wgmma_scale_out<{begins}>], {', '.join(factors)}"
        )
        return self.writer.let(f"{text} : {sums.type} -> {sums.type}", sums.type)

    def multiply_held(
        self, a: Sequence[Value], b: tuple[OperandTile, Value], sums: Sequence[Value]
    ) -> list[Value]:
        """Begin to add a product to sums. a: its rows, four i32 of each thread; b: tile and descriptor."""
        count = len(sums)
        names = [f"${k}" for k in range(2 * count + len(a) + 1)]
        turned = int(not b[0].source.by_depth)
        code = (
            f"wgmma.mma_async.sync.aligned.m{ROWS}n{2 * count}k{STEP}.f32.{self.dtype}.{self.dtype} "
            f"{{{', '.join(names[:count])}}}, {{{', '.join(names[2 * count : -1])}}}, {names[-1]}, "
            f"1, 1, 1, {turned};"
        )
        ties = ",".join([*["=f"] * count, *map(str, range(count)), *["r"] * len(a), "l"])
        operands = [*sums, *a, b[1]]
        given, types = (", ".join(x) for x in zip(*((v.name, v.type) for v in operands)))
        kind = f"!llvm.struct<({', '.join(['f32'] * count)})>"
        text = f'llvm.inline_asm has_side_effects asm_dialect = att "{code}", "{ties}" {given}'
        made = self.writer.let(f"{text} : ({types}) -> {kind}", kind)
        return [self.writer.field(made, k, "f32") for k in range(count)]
