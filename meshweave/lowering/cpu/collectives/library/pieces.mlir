// Copy a piece of an exchange: a box of any number of levels (abi.PieceWords says how it lies in memory).
//
// RUN: meshweave-opt %s -p convert-scf-to-cf,convert-arith-to-llvm,convert-cf-to-llvm | filecheck %s
// CHECK-LABEL: llvm.func @copy_runs
// CHECK: "llvm.intr.memcpy"
// CHECK-LABEL: llvm.func @copy_piece
// CHECK: llvm.call @copy_block

#PieceWords_RUN = 3 : i64
#PieceWords_OUTER = 5 : i64
#PieceWords_LEVELS = 6 : i64
#INNER = 2 : i64  // levels that every piece has
#PACKED_TARGET = 1 : i64
#PACKED_SOURCE = 2 : i64

llvm.func @word(!llvm.ptr, i64) -> i64
llvm.func @copy_block(!llvm.ptr, !llvm.ptr, i64, i64, i64, i64, i64, i64, i64)

// Copy a box of two levels run by run.
llvm.func @copy_runs(%to: !llvm.ptr, %from: !llvm.ptr, %n1: i64, %s1: i64, %t1: i64,
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

// Copy a piece from where its source to where its target begins. packed: #PACKED_SOURCE or #PACKED_TARGET where that
// side lies back to back instead of as the piece says: each level then steps over all that is inside of it; else 0.
llvm.func @copy_piece(%to: !llvm.ptr, %from: !llvm.ptr, %piece: !llvm.ptr, %packed: i64) attributes {no_inline} {
  %c0 = arith.constant 0 : i64
  %c1 = arith.constant 1 : i64
  %c2 = arith.constant 2 : i64
  %level_words = arith.constant 3 : i64
  %inner = arith.constant #INNER
  %source_code = arith.constant #PACKED_SOURCE
  %target_code = arith.constant #PACKED_TARGET
  %run_word = arith.constant #PieceWords_RUN
  %outer_word = arith.constant #PieceWords_OUTER
  %levels_word = arith.constant #PieceWords_LEVELS
  %packs_source = arith.cmpi eq, %packed, %source_code : i64
  %packs_target = arith.cmpi eq, %packed, %target_code : i64
  %run = llvm.call @word(%piece, %run_word) : (!llvm.ptr, i64) -> i64
  %outer = llvm.call @word(%piece, %outer_word) : (!llvm.ptr, i64) -> i64
  %all = arith.addi %outer, %inner : i64
  %words = arith.muli %all, %level_words : i64
  %levels = llvm.alloca %words x i64 : (i64) -> !llvm.ptr
  %counters = llvm.alloca %all x i64 : (i64) -> !llvm.ptr
  %given = llvm.getelementptr %piece[%levels_word] : (!llvm.ptr, i64) -> !llvm.ptr, i64
  %whole = scf.for %k = %c0 to %all step %c1 iter_args(%size = %run) -> (i64) : i64 {
    %at = arith.muli %k, %level_words : i64
    %old = llvm.getelementptr %given[%at] : (!llvm.ptr, i64) -> !llvm.ptr, i64
    %new = llvm.getelementptr %levels[%at] : (!llvm.ptr, i64) -> !llvm.ptr, i64
    %count = llvm.call @word(%old, %c0) : (!llvm.ptr, i64) -> i64
    %s = llvm.call @word(%old, %c1) : (!llvm.ptr, i64) -> i64
    %t = llvm.call @word(%old, %c2) : (!llvm.ptr, i64) -> i64
    %s_new = arith.select %packs_source, %size, %s : i64
    %t_new = arith.select %packs_target, %size, %t : i64
    %new_s = llvm.getelementptr %new[1] : (!llvm.ptr) -> !llvm.ptr, i64
    %new_t = llvm.getelementptr %new[2] : (!llvm.ptr) -> !llvm.ptr, i64
    llvm.store %count, %new : i64, !llvm.ptr
    llvm.store %s_new, %new_s : i64, !llvm.ptr
    llvm.store %t_new, %new_t : i64, !llvm.ptr
    %counter = llvm.getelementptr %counters[%k] : (!llvm.ptr, i64) -> !llvm.ptr, i64
    llvm.store %c0, %counter : i64, !llvm.ptr
    %next = arith.muli %size, %count : i64
    scf.yield %next : i64
  }
  llvm.call @copy_levels(%to, %from, %levels, %counters, %all, %run)
    : (!llvm.ptr, !llvm.ptr, !llvm.ptr, !llvm.ptr, i64, i64) -> ()
  llvm.return
}

// Copy the box of the two inner levels at every place that the outer ones come to: they count up like an odometer, in
// `counters`, which are 0.
llvm.func @copy_levels(%to: !llvm.ptr, %from: !llvm.ptr, %levels: !llvm.ptr, %counters: !llvm.ptr, %all: i64,
    %run: i64) {
  %c0 = arith.constant 0 : i64
  %c1 = arith.constant 1 : i64
  %c2 = arith.constant 2 : i64
  %inner = arith.constant #INNER
  %level_words = arith.constant 3 : i64
  %second = llvm.getelementptr %levels[3] : (!llvm.ptr) -> !llvm.ptr, i64
  %n0 = llvm.call @word(%levels, %c0) : (!llvm.ptr, i64) -> i64
  %s0 = llvm.call @word(%levels, %c1) : (!llvm.ptr, i64) -> i64
  %t0 = llvm.call @word(%levels, %c2) : (!llvm.ptr, i64) -> i64
  %n1 = llvm.call @word(%second, %c0) : (!llvm.ptr, i64) -> i64
  %s1 = llvm.call @word(%second, %c1) : (!llvm.ptr, i64) -> i64
  %t1 = llvm.call @word(%second, %c2) : (!llvm.ptr, i64) -> i64
  cf.br ^box(%to, %from : !llvm.ptr, !llvm.ptr)
^box(%q: !llvm.ptr, %p: !llvm.ptr):
  llvm.call @copy_block(%q, %p, %n1, %s1, %t1, %n0, %s0, %t0, %run)
    : (!llvm.ptr, !llvm.ptr, i64, i64, i64, i64, i64, i64, i64) -> ()
  cf.br ^level(%inner, %q, %p : i64, !llvm.ptr, !llvm.ptr)
^level(%l: i64, %q1: !llvm.ptr, %p1: !llvm.ptr):
  %is_there = arith.cmpi slt, %l, %all : i64
  cf.cond_br %is_there, ^step, ^done
^step:
  %at = arith.muli %l, %level_words : i64
  %level = llvm.getelementptr %levels[%at] : (!llvm.ptr, i64) -> !llvm.ptr, i64
  %count = llvm.call @word(%level, %c0) : (!llvm.ptr, i64) -> i64
  %s = llvm.call @word(%level, %c1) : (!llvm.ptr, i64) -> i64
  %t = llvm.call @word(%level, %c2) : (!llvm.ptr, i64) -> i64
  %counter = llvm.getelementptr %counters[%l] : (!llvm.ptr, i64) -> !llvm.ptr, i64
  %before = llvm.load %counter : !llvm.ptr -> i64
  %now = arith.addi %before, %c1 : i64
  %q2 = llvm.getelementptr %q1[%t] : (!llvm.ptr, i64) -> !llvm.ptr, i8
  %p2 = llvm.getelementptr %p1[%s] : (!llvm.ptr, i64) -> !llvm.ptr, i8
  %has_more = arith.cmpi slt, %now, %count : i64
  cf.cond_br %has_more, ^count, ^carry
^count:
  llvm.store %now, %counter : i64, !llvm.ptr
  cf.br ^box(%q2, %p2 : !llvm.ptr, !llvm.ptr)
^carry:
  llvm.store %c0, %counter : i64, !llvm.ptr
  %minus = arith.subi %c0, %count : i64
  %back_t = arith.muli %minus, %t : i64
  %back_s = arith.muli %minus, %s : i64
  %q3 = llvm.getelementptr %q2[%back_t] : (!llvm.ptr, i64) -> !llvm.ptr, i8
  %p3 = llvm.getelementptr %p2[%back_s] : (!llvm.ptr, i64) -> !llvm.ptr, i8
  %outwards = arith.addi %l, %c1 : i64
  cf.br ^level(%outwards, %q3, %p3 : i64, !llvm.ptr, !llvm.ptr)
^done:
  llvm.return
}
