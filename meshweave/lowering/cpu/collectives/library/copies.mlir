// Copy boxes of two levels whose elements are runs of #unit_bytes bytes: loaded and stored in tiles of a few cache
// lines, so that neither side of a transposing copy is touched out of the cache. As it lies, this file is for runs of 4
// bytes. The instances that a program needs form a chain: each leaves other runs to @copy_block_next.
//
// Every count, step and length is in bytes but for the counts n1 and n0 of the levels; s: a step in the source, t: in
// the target.
//
// RUN: meshweave-opt %s -p convert-scf-to-cf,convert-arith-to-llvm,convert-cf-to-llvm | filecheck %s
// CHECK-LABEL: llvm.func @copy_units_4
// CHECK: llvm.load %{{.*}} {alignment = 1 : i64} : !llvm.ptr -> i32
// CHECK-LABEL: llvm.func @transpose_4
// CHECK: llvm.alloca

!unit = i32
#unit_bytes = 4 : i64
#tile = 16 : i64        // units on a side of a tile: a cache line of them, and at least 16
#tile_cells = 256 : i64

llvm.func @copy_block_next(!llvm.ptr, !llvm.ptr, i64, i64, i64, i64, i64, i64, i64)

// Copy a box, tile by tile.
llvm.func @copy_units_4(%to: !llvm.ptr {llvm.noalias}, %from: !llvm.ptr {llvm.noalias},
    %n1: i64, %s1: i64, %t1: i64, %n0: i64, %s0: i64, %t0: i64) attributes {no_inline} {
  %c0 = arith.constant 0 : i64
  %c1 = arith.constant 1 : i64
  %tile = arith.constant #tile
  scf.for %i0 = %c0 to %n1 step %tile : i64 {
    %i_end_raw = arith.addi %i0, %tile : i64
    %i_end = arith.minsi %i_end_raw, %n1 : i64
    scf.for %j0 = %c0 to %n0 step %tile : i64 {
      %j_end_raw = arith.addi %j0, %tile : i64
      %j_end = arith.minsi %j_end_raw, %n0 : i64
      scf.for %i = %i0 to %i_end step %c1 : i64 {
        %si = arith.muli %i, %s1 : i64
        %ti = arith.muli %i, %t1 : i64
        scf.for %j = %j0 to %j_end step %c1 : i64 {
          %sj = arith.muli %j, %s0 : i64
          %tj = arith.muli %j, %t0 : i64
          %s = arith.addi %si, %sj : i64
          %t = arith.addi %ti, %tj : i64
          %p = llvm.getelementptr %from[%s] : (!llvm.ptr, i64) -> !llvm.ptr, i8
          %q = llvm.getelementptr %to[%t] : (!llvm.ptr, i64) -> !llvm.ptr, i8
          %x = llvm.load %p {alignment = 1 : i64} : !llvm.ptr -> !unit
          llvm.store %x, %q {alignment = 1 : i64} : !unit, !llvm.ptr
        }
      }
    }
  }
  llvm.return
}

// Transpose a tile of `ni` columns and `nj` rows of the source: its rows go to the buffer, then the buffer's columns to
// rows of the target. Inlined for whole tiles and for the rest, so that whole tiles have loops of known length.
llvm.func @transpose_tile_4(%to: !llvm.ptr, %from: !llvm.ptr, %buffer: !llvm.ptr, %t1: i64, %s0: i64,
    %ni: i64, %nj: i64) attributes {always_inline} {
  %c0 = arith.constant 0 : i64
  %c1 = arith.constant 1 : i64
  %tile = arith.constant #tile
  scf.for %j = %c0 to %nj step %c1 : i64 {
    %source_row = arith.muli %j, %s0 : i64
    %line = llvm.getelementptr %from[%source_row] : (!llvm.ptr, i64) -> !llvm.ptr, i8
    %row = arith.muli %j, %tile : i64
    %cell_row = llvm.getelementptr %buffer[%row] : (!llvm.ptr, i64) -> !llvm.ptr, !unit
    scf.for %i = %c0 to %ni step %c1 : i64 {
      %a = llvm.getelementptr %line[%i] : (!llvm.ptr, i64) -> !llvm.ptr, !unit
      %b = llvm.getelementptr %cell_row[%i] : (!llvm.ptr, i64) -> !llvm.ptr, !unit
      %x = llvm.load %a {alignment = 1 : i64} : !llvm.ptr -> !unit
      llvm.store %x, %b : !unit, !llvm.ptr
    }
  }
  scf.for %i = %c0 to %ni step %c1 : i64 {
    %target_row = arith.muli %i, %t1 : i64
    %line = llvm.getelementptr %to[%target_row] : (!llvm.ptr, i64) -> !llvm.ptr, i8
    %column = llvm.getelementptr %buffer[%i] : (!llvm.ptr, i64) -> !llvm.ptr, !unit
    scf.for %j = %c0 to %nj step %c1 : i64 {
      %row = arith.muli %j, %tile : i64
      %a = llvm.getelementptr %column[%row] : (!llvm.ptr, i64) -> !llvm.ptr, !unit
      %b = llvm.getelementptr %line[%j] : (!llvm.ptr, i64) -> !llvm.ptr, !unit
      %x = llvm.load %a : !llvm.ptr -> !unit
      llvm.store %x, %b {alignment = 1 : i64} : !unit, !llvm.ptr
    }
  }
  llvm.return
}

// Copy a box whose outer level is contiguous in the source and whose inner one is in the target. Tiles go through a
// buffer on the stack, so that whole cache lines are read and written, one at a time: lines that a power of two lies
// between share a place in the cache. Tiles follow each other along the source, whose lines the processor then fetches
// ahead.
llvm.func @transpose_4(%to: !llvm.ptr {llvm.noalias}, %from: !llvm.ptr {llvm.noalias},
    %n1: i64, %t1: i64, %n0: i64, %s0: i64) attributes {no_inline} {
  %c0 = arith.constant 0 : i64
  %tile = arith.constant #tile
  %width = arith.constant #unit_bytes
  %cells = arith.constant #tile_cells
  %buffer = llvm.alloca %cells x !unit {alignment = 64 : i64} : (i64) -> !llvm.ptr
  scf.for %j0 = %c0 to %n0 step %tile : i64 {
    %j_left = arith.subi %n0, %j0 : i64
    %nj = arith.minsi %j_left, %tile : i64
    %sj = arith.muli %j0, %s0 : i64
    %tj = arith.muli %j0, %width : i64
    scf.for %i0 = %c0 to %n1 step %tile : i64 {
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
      scf.if %whole {
        llvm.call @transpose_tile_4(%q, %p, %buffer, %t1, %s0, %tile, %tile)
          : (!llvm.ptr, !llvm.ptr, !llvm.ptr, i64, i64, i64, i64) -> ()
      } else {
        llvm.call @transpose_tile_4(%q, %p, %buffer, %t1, %s0, %ni, %nj)
          : (!llvm.ptr, !llvm.ptr, !llvm.ptr, i64, i64, i64, i64) -> ()
      }
    }
  }
  llvm.return
}

// Copy a box of runs of any length.
llvm.func @copy_block_4(%to: !llvm.ptr, %from: !llvm.ptr, %n1: i64, %s1: i64, %t1: i64,
    %n0: i64, %s0: i64, %t0: i64, %run: i64) {
  %width = arith.constant #unit_bytes
  %is_unit = arith.cmpi eq, %run, %width : i64
  %by_source = arith.cmpi eq, %s1, %run : i64
  %by_target = arith.cmpi eq, %t0, %run : i64
  %transposes = arith.andi %by_source, %by_target : i1
  scf.if %is_unit {
    scf.if %transposes {
      llvm.call @transpose_4(%to, %from, %n1, %t1, %n0, %s0) : (!llvm.ptr, !llvm.ptr, i64, i64, i64, i64) -> ()
    } else {
      llvm.call @copy_units_4(%to, %from, %n1, %s1, %t1, %n0, %s0, %t0)
        : (!llvm.ptr, !llvm.ptr, i64, i64, i64, i64, i64, i64) -> ()
    }
  } else {
    llvm.call @copy_block_next(%to, %from, %n1, %s1, %t1, %n0, %s0, %t0, %run)
      : (!llvm.ptr, !llvm.ptr, i64, i64, i64, i64, i64, i64, i64) -> ()
  }
  llvm.return
}
