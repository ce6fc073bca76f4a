"""Strided copies as compiled code: what collectives move bytes with.

`mw_copy_block` copies a box of two levels whose elements are runs of bytes: short runs of 1, 2, 4, 8
or 16 bytes are loaded and stored, in tiles of a few cache lines, so that neither side of a transposing
copy is touched out of the cache; other runs are left to memcpy. `mw_copy_piece` copies a piece of an
exchange, a box of any number of levels. The loops for a length of short runs are written for programs
that have such runs; without them memcpy does the same.

A piece is PIECE_WORDS words of 64 bits: member, source offset, target offset, length of a run, bytes
in all, number of outer levels; then the levels, innermost first, each (count, source step, target
step). There are always two inner levels. Offsets, steps and lengths are in bytes.
"""

from __future__ import annotations

from collections.abc import Collection

from meshweave.lowering.phrases import word

MEMBER, SOURCE, TARGET, RUN, NBYTES, OUTER, LEVELS = range(7)  # words of a piece
INNER = 2  # levels that every piece has
UNITS = (1, 2, 4, 8, 16)  # lengths of runs that are loaded and stored
PACKED_TARGET, PACKED_SOURCE = 1, 2  # what of a piece lies back to back, instead of as it says


def _tile(unit: int) -> int:
    """Units on a side of a tile: a cache line of them, and at least 16."""
    return max(16, 64 // unit)


def _units(unit: int) -> str:
    """Copy n1 x n0 units of that many bytes, tile by tile."""
    kind = f"i{8 * unit}" if unit <= 8 else f"vector<{unit}xi8>"
    return f"""
llvm.func @mw_copy_units_{unit}(%to: !llvm.ptr {{llvm.noalias}}, %from: !llvm.ptr {{llvm.noalias}},
    %n1: i64, %s1: i64, %t1: i64, %n0: i64, %s0: i64, %t0: i64) attributes {{no_inline}} {{
  %c0 = arith.constant 0 : i64
  %c1 = arith.constant 1 : i64
  %tile = arith.constant {_tile(unit)} : i64
  scf.for %i0 = %c0 to %n1 step %tile : i64 {{
    %i_end_raw = arith.addi %i0, %tile : i64
    %i_end = arith.minsi %i_end_raw, %n1 : i64
    scf.for %j0 = %c0 to %n0 step %tile : i64 {{
      %j_end_raw = arith.addi %j0, %tile : i64
      %j_end = arith.minsi %j_end_raw, %n0 : i64
      scf.for %i = %i0 to %i_end step %c1 : i64 {{
        %si = arith.muli %i, %s1 : i64
        %ti = arith.muli %i, %t1 : i64
        scf.for %j = %j0 to %j_end step %c1 : i64 {{
          %sj = arith.muli %j, %s0 : i64
          %tj = arith.muli %j, %t0 : i64
          %s = arith.addi %si, %sj : i64
          %t = arith.addi %ti, %tj : i64
          %p = llvm.getelementptr %from[%s] : (!llvm.ptr, i64) -> !llvm.ptr, i8
          %q = llvm.getelementptr %to[%t] : (!llvm.ptr, i64) -> !llvm.ptr, i8
          %x = llvm.load %p {{alignment = 1 : i64}} : !llvm.ptr -> {kind}
          llvm.store %x, %q {{alignment = 1 : i64}} : {kind}, !llvm.ptr
        }}
      }}
    }}
  }}
  llvm.return
}}
"""


def _transpose(unit: int) -> str:
    """The same where the outer level is contiguous in the source and the inner one in the target. Tiles
    go through a buffer on the stack, so that whole cache lines are read and written, one at a time:
    lines that a power of two lies between share a place in the cache. Tiles follow each other along the
    source, whose lines the processor then fetches ahead.
    """
    tile = _tile(unit)
    kind = f"i{8 * unit}" if unit <= 8 else f"vector<{unit}xi8>"
    return f"""
llvm.func @mw_transpose_{unit}(%to: !llvm.ptr {{llvm.noalias}}, %from: !llvm.ptr {{llvm.noalias}},
    %n1: i64, %t1: i64, %n0: i64, %s0: i64) attributes {{no_inline}} {{
  %c0 = arith.constant 0 : i64
  %c1 = arith.constant 1 : i64
  %tile = arith.constant {tile} : i64
  %width = arith.constant {unit} : i64
  %cells = arith.constant {tile * tile} : i64
  %buffer = llvm.alloca %cells x {kind} {{alignment = 64 : i64}} : (i64) -> !llvm.ptr
  scf.for %j0 = %c0 to %n0 step %tile : i64 {{
    %j_left = arith.subi %n0, %j0 : i64
    %nj = arith.minsi %j_left, %tile : i64
    %sj = arith.muli %j0, %s0 : i64
    %tj = arith.muli %j0, %width : i64
    scf.for %i0 = %c0 to %n1 step %tile : i64 {{
      %i_left = arith.subi %n1, %i0 : i64
      %ni = arith.minsi %i_left, %tile : i64
      %si = arith.muli %i0, %width : i64
      %ti = arith.muli %i0, %t1 : i64
      %s = arith.addi %si, %sj : i64
      %t = arith.addi %ti, %tj : i64
      %p = llvm.getelementptr %from[%s] : (!llvm.ptr, i64) -> !llvm.ptr, i8
      %q = llvm.getelementptr %to[%t] : (!llvm.ptr, i64) -> !llvm.ptr, i8
      %ni_whole = arith.cmpi eq, %ni, %tile : i64
      %nj_whole = arith.cmpi eq, %nj, %tile : i64
      %whole = arith.andi %ni_whole, %nj_whole : i1
      scf.if %whole {{
{_tile_text(unit, "%tile", "%tile")}
      }} else {{
{_tile_text(unit, "%ni", "%nj")}
      }}
    }}
  }}
  llvm.return
}}
"""


def _tile_text(unit: int, ni: str, nj: str) -> str:
    """Rows of the source to the buffer, then its columns to rows of the target."""
    kind = f"i{8 * unit}" if unit <= 8 else f"vector<{unit}xi8>"
    return f"""
      scf.for %j = %c0 to {nj} step %c1 : i64 {{
        %source_row = arith.muli %j, %s0 : i64
        %line = llvm.getelementptr %p[%source_row] : (!llvm.ptr, i64) -> !llvm.ptr, i8
        %row = arith.muli %j, %tile : i64
        %cell_row = llvm.getelementptr %buffer[%row] : (!llvm.ptr, i64) -> !llvm.ptr, {kind}
        scf.for %i = %c0 to {ni} step %c1 : i64 {{
          %a = llvm.getelementptr %line[%i] : (!llvm.ptr, i64) -> !llvm.ptr, {kind}
          %b = llvm.getelementptr %cell_row[%i] : (!llvm.ptr, i64) -> !llvm.ptr, {kind}
          %x = llvm.load %a {{alignment = 1 : i64}} : !llvm.ptr -> {kind}
          llvm.store %x, %b : {kind}, !llvm.ptr
        }}
      }}
      scf.for %i = %c0 to {ni} step %c1 : i64 {{
        %target_row = arith.muli %i, %t1 : i64
        %line = llvm.getelementptr %q[%target_row] : (!llvm.ptr, i64) -> !llvm.ptr, i8
        %column = llvm.getelementptr %buffer[%i] : (!llvm.ptr, i64) -> !llvm.ptr, {kind}
        scf.for %j = %c0 to {nj} step %c1 : i64 {{
          %row = arith.muli %j, %tile : i64
          %a = llvm.getelementptr %column[%row] : (!llvm.ptr, i64) -> !llvm.ptr, {kind}
          %b = llvm.getelementptr %line[%j] : (!llvm.ptr, i64) -> !llvm.ptr, {kind}
          %x = llvm.load %a : !llvm.ptr -> {kind}
          llvm.store %x, %b {{alignment = 1 : i64}} : {kind}, !llvm.ptr
        }}
      }}"""


_BOX = "!llvm.ptr, !llvm.ptr, i64, i64, i64, i64, i64, i64"
_RUNS = """
llvm.func @mw_copy_runs(%to: !llvm.ptr, %from: !llvm.ptr, %n1: i64, %s1: i64, %t1: i64,
    %n0: i64, %s0: i64, %t0: i64, %run: i64) attributes {no_inline} {
  %c0 = arith.constant 0 : i64
  %c1 = arith.constant 1 : i64
  scf.for %i = %c0 to %n1 step %c1 : i64 {
    %si = arith.muli %i, %s1 : i64
    %ti = arith.muli %i, %t1 : i64
    scf.for %j = %c0 to %n0 step %c1 : i64 {
      %sj = arith.muli %j, %s0 : i64
      %tj = arith.muli %j, %t0 : i64
      %s = arith.addi %si, %sj : i64
      %t = arith.addi %ti, %tj : i64
      %p = llvm.getelementptr %from[%s] : (!llvm.ptr, i64) -> !llvm.ptr, i8
      %q = llvm.getelementptr %to[%t] : (!llvm.ptr, i64) -> !llvm.ptr, i8
      "llvm.intr.memcpy"(%q, %p, %run) <{isVolatile = false}> : (!llvm.ptr, !llvm.ptr, i64) -> ()
    }
  }
  llvm.return
}
"""


def _block(units: Collection[int]) -> str:
    """The function that chooses by the length of a run."""
    body = f"""
    llvm.call @mw_copy_runs(%to, %from, %n1, %s1, %t1, %n0, %s0, %t0, %run)
      : ({_BOX}, i64) -> ()"""
    for unit in units:
        body = f"""
    %unit{unit} = arith.constant {unit} : i64
    %is{unit} = arith.cmpi eq, %run, %unit{unit} : i64
    scf.if %is{unit} {{
    scf.if %transposes {{
    llvm.call @mw_transpose_{unit}(%to, %from, %n1, %t1, %n0, %s0)
      : (!llvm.ptr, !llvm.ptr, i64, i64, i64, i64) -> ()
    }} else {{
    llvm.call @mw_copy_units_{unit}(%to, %from, %n1, %s1, %t1, %n0, %s0, %t0) : ({_BOX}) -> ()
    }}
    }} else {{{body}
    }}"""
    return f"""
llvm.func @mw_copy_block(%to: !llvm.ptr, %from: !llvm.ptr, %n1: i64, %s1: i64, %t1: i64,
    %n0: i64, %s0: i64, %t0: i64, %run: i64) attributes {{no_inline}} {{
  %by_source = arith.cmpi eq, %s1, %run : i64
  %by_target = arith.cmpi eq, %t0, %run : i64
  %transposes = arith.andi %by_source, %by_target : i1{body}
  llvm.return
}}
"""


def copy_block(to: str, source: str, outer: str, inner: str, run: str) -> str:
    """The call that copies a box. outer, inner: a level each, as `count, source step, target step`."""
    return f"""
    llvm.call @mw_copy_block({to}, {source}, {outer}, {inner}, {run}) : ({_BOX}, i64) -> ()"""


def blocks_text(units: Collection[int] = UNITS) -> str:
    """The functions that copy boxes of two levels, with loops for runs of `units` bytes."""
    loops = "".join(_units(unit) + _transpose(unit) for unit in units)
    return loops + _RUNS + _block(units)


def copy_piece(to: str, source: str, piece: str, packed: str) -> str:
    """The call that copies a piece from where its source to where its target begins."""
    return f"""
    llvm.call @mw_copy_piece({to}, {source}, {piece}, {packed})
      : (!llvm.ptr, !llvm.ptr, !llvm.ptr, i64) -> ()"""


def _odometer() -> str:
    """Copy the box of the inner levels at every place that the outer ones come to."""
    return f"""
  cf.br ^box(%to, %from : !llvm.ptr, !llvm.ptr)
^box(%q: !llvm.ptr, %p: !llvm.ptr):
{copy_block("%q", "%p", "%n1, %s1, %t1", "%n0, %s0, %t0", "%run")}
  cf.br ^level(%c_inner, %q, %p : i64, !llvm.ptr, !llvm.ptr)
^level(%l: i64, %q1: !llvm.ptr, %p1: !llvm.ptr):
  %there = arith.cmpi slt, %l, %all : i64
  cf.cond_br %there, ^step, ^done
^step:
  %l_at = arith.muli %l, %c3 : i64
  %here = llvm.getelementptr %levels[%l_at] : (!llvm.ptr, i64) -> !llvm.ptr, i64
  %l_count = llvm.load %here : !llvm.ptr -> i64{word("%ls", "%here", 1)}{word("%lt", "%here", 2)}
  %cell = llvm.getelementptr %counters[%l] : (!llvm.ptr, i64) -> !llvm.ptr, i64
  %before = llvm.load %cell : !llvm.ptr -> i64
  %now = arith.addi %before, %c1 : i64
  %q2 = llvm.getelementptr %q1[%lt] : (!llvm.ptr, i64) -> !llvm.ptr, i8
  %p2 = llvm.getelementptr %p1[%ls] : (!llvm.ptr, i64) -> !llvm.ptr, i8
  %more = arith.cmpi slt, %now, %l_count : i64
  cf.cond_br %more, ^count, ^carry
^count:
  llvm.store %now, %cell : i64, !llvm.ptr
  cf.br ^box(%q2, %p2 : !llvm.ptr, !llvm.ptr)
^carry:
  llvm.store %c0, %cell : i64, !llvm.ptr
  %minus = arith.subi %c0, %l_count : i64
  %back_t = arith.muli %minus, %lt : i64
  %back_s = arith.muli %minus, %ls : i64
  %q3 = llvm.getelementptr %q2[%back_t] : (!llvm.ptr, i64) -> !llvm.ptr, i8
  %p3 = llvm.getelementptr %p2[%back_s] : (!llvm.ptr, i64) -> !llvm.ptr, i8
  %outwards = arith.addi %l, %c1 : i64
  cf.br ^level(%outwards, %q3, %p3 : i64, !llvm.ptr, !llvm.ptr)
^done:
  llvm.return"""


def piece_text() -> str:
    """`mw_copy_piece(to, from, piece, packed)`. The levels are made for this call first: of the side
    that is packed each steps over all that is inside of it. The outer ones count up like an odometer.
    """
    inner = "".join(
        word(f"%{name}{level}", "%levels", 3 * level + k)
        for level in range(INNER)
        for k, name in enumerate("nst")
    )
    return f"""
llvm.func @mw_copy_piece(%to: !llvm.ptr, %from: !llvm.ptr, %piece: !llvm.ptr, %packed: i64)
    attributes {{no_inline}} {{
  %c0 = arith.constant 0 : i64
  %c1 = arith.constant 1 : i64
  %c3 = arith.constant 3 : i64
  %c_inner = arith.constant {INNER} : i64
  %c_source = arith.constant {PACKED_SOURCE} : i64
  %c_target = arith.constant {PACKED_TARGET} : i64
  %pack_source = arith.cmpi eq, %packed, %c_source : i64
  %pack_target = arith.cmpi eq, %packed, %c_target : i64
{word("%run", "%piece", RUN)}{word("%outer", "%piece", OUTER)}
  %all = arith.addi %outer, %c_inner : i64
  %words = arith.muli %all, %c3 : i64
  %levels = llvm.alloca %words x i64 : (i64) -> !llvm.ptr
  %counters = llvm.alloca %all x i64 : (i64) -> !llvm.ptr
  %given = llvm.getelementptr %piece[{LEVELS}] : (!llvm.ptr) -> !llvm.ptr, i64
  %whole = scf.for %k = %c0 to %all step %c1 iter_args(%size = %run) -> (i64) : i64 {{
    %at = arith.muli %k, %c3 : i64
    %old = llvm.getelementptr %given[%at] : (!llvm.ptr, i64) -> !llvm.ptr, i64
    %new = llvm.getelementptr %levels[%at] : (!llvm.ptr, i64) -> !llvm.ptr, i64
    %count = llvm.load %old : !llvm.ptr -> i64{word("%s", "%old", 1)}{word("%t", "%old", 2)}
    %s_new = arith.select %pack_source, %size, %s : i64
    %t_new = arith.select %pack_target, %size, %t : i64
    %new_s = llvm.getelementptr %new[1] : (!llvm.ptr) -> !llvm.ptr, i64
    %new_t = llvm.getelementptr %new[2] : (!llvm.ptr) -> !llvm.ptr, i64
    llvm.store %count, %new : i64, !llvm.ptr
    llvm.store %s_new, %new_s : i64, !llvm.ptr
    llvm.store %t_new, %new_t : i64, !llvm.ptr
    %counter = llvm.getelementptr %counters[%k] : (!llvm.ptr, i64) -> !llvm.ptr, i64
    llvm.store %c0, %counter : i64, !llvm.ptr
    %next = arith.muli %size, %count : i64
    scf.yield %next : i64
  }}{inner}{_odometer()}
}}
"""
