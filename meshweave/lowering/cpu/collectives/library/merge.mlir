// merge: members hold columns that are in order, and each gets its part of all of them in order. Each looks up where in
// the others' columns its part begins and ends, and merges what lies between, read from where it lies.
//
// A tensor has `planes` tensors of [outer, count, inner] elements of #unit_bytes bytes, one behind the other: the keys,
// then what moves as they do. flip, sign, mask, limit, canonical: how keys become numbers that are the smaller the
// earlier they come, see @key_number_4. As it lies, this file is for elements of 4 bytes.
//
// RUN: meshweave-opt %s -p convert-scf-to-cf,convert-arith-to-llvm,convert-cf-to-llvm | filecheck %s
// CHECK-LABEL: llvm.func @mw_merge_4(
// CHECK: llvm.call @begin
// CHECK: llvm.call @merge_from_4
// CHECK: llvm.call @end

!unit = i32
#unit_bytes = 4 : i64
#RUN_WORDS = 4 : i64  // of a run: where its next element lies, how many are left, the bytes to the next, to the next plane
#PUBLISHED = -1 : i64

llvm.func @word(!llvm.ptr, i64) -> i64
llvm.func @group_of(!llvm.ptr, i64) -> !llvm.ptr
llvm.func @member_of(!llvm.ptr, i64) -> i64
llvm.func @size_of(!llvm.ptr) -> i64
llvm.func @is_ok(i32) -> i1
llvm.func @source_of(!llvm.ptr, i64, i64) -> !llvm.ptr
llvm.func @begin(!llvm.ptr, i64, !llvm.ptr, !llvm.ptr, i64) -> i32
llvm.func @end(!llvm.ptr, i64) -> i32

llvm.func @set_word(%table: !llvm.ptr, %index: i64, %value: i64) attributes {always_inline} {
  %at = llvm.getelementptr %table[%index] : (!llvm.ptr, i64) -> !llvm.ptr, i64
  llvm.store %value, %at : i64, !llvm.ptr
  llvm.return
}

// A key as a number. Of floats, of the sign bit `sign`, the
// bits of negative numbers are flipped, all within `mask`, and those of others get the sign; integers have no `sign`
// here. Where `canonical` is not 0, zeros are equal, and so is all of a size above `limit`, which are NaNs. In the end
// the bits of `flip` are flipped.
llvm.func @number_of_4(%x: !unit, %flip: !unit, %sign: !unit, %mask: !unit, %limit: !unit, %canonical: !unit) -> !unit
    attributes {always_inline} {
  %none = arith.constant 0 : !unit
  %is_canonical = arith.cmpi ne, %canonical, %none : !unit
  %size_bits = arith.xori %mask, %sign : !unit
  %size = arith.andi %x, %size_bits : !unit
  %is_zero = arith.cmpi eq, %size, %none : !unit
  %to_zero = arith.andi %is_zero, %is_canonical : i1
  %is_large = arith.cmpi ugt, %size, %limit : !unit
  %to_nan = arith.andi %is_large, %is_canonical : i1
  %some = arith.select %to_zero, %none, %x : !unit
  %y = arith.select %to_nan, %size_bits, %some : !unit
  %sign_of_y = arith.andi %y, %sign : !unit
  %is_negative = arith.cmpi ne, %sign_of_y, %none : !unit
  %flipped = arith.xori %y, %mask : !unit
  %raised = arith.ori %y, %sign : !unit
  %number = arith.select %is_negative, %flipped, %raised : !unit
  %result = arith.xori %number, %flip : !unit
  llvm.return %result : !unit
}

// Word `index` of how keys become numbers.
llvm.func @how_4(%how: !llvm.ptr, %index: i64) -> !unit attributes {always_inline} {
  %at = llvm.getelementptr %how[%index] : (!llvm.ptr, i64) -> !llvm.ptr, i64
  %x = llvm.load %at : !llvm.ptr -> !unit
  llvm.return %x : !unit
}

// Element `index` of a column whose elements lie `step` bytes apart, as a number.
llvm.func @key_number_4(%column: !llvm.ptr, %index: i64, %step: i64, %how: !llvm.ptr) -> !unit
    attributes {always_inline} {
  %c0 = arith.constant 0 : i64
  %c1 = arith.constant 1 : i64
  %c2 = arith.constant 2 : i64
  %c3 = arith.constant 3 : i64
  %c4 = arith.constant 4 : i64
  %offset = arith.muli %index, %step : i64
  %at = llvm.getelementptr %column[%offset] : (!llvm.ptr, i64) -> !llvm.ptr, i8
  %x = llvm.load %at : !llvm.ptr -> !unit
  %flip = llvm.call @how_4(%how, %c0) : (!llvm.ptr, i64) -> !unit
  %sign = llvm.call @how_4(%how, %c1) : (!llvm.ptr, i64) -> !unit
  %mask = llvm.call @how_4(%how, %c2) : (!llvm.ptr, i64) -> !unit
  %limit = llvm.call @how_4(%how, %c3) : (!llvm.ptr, i64) -> !unit
  %canonical = llvm.call @how_4(%how, %c4) : (!llvm.ptr, i64) -> !unit
  %number = llvm.call @number_of_4(%x, %flip, %sign, %mask, %limit, %canonical)
    : (!unit, !unit, !unit, !unit, !unit, !unit) -> !unit
  llvm.return %number : !unit
}

// How many elements of a column, between `low` and `high`, come before those of `number`; where `also` is not 0, those
// of it too.
llvm.func @count_before_4(%column: !llvm.ptr, %step: i64, %low: i64, %high: i64, %number: !unit, %also: i64,
    %how: !llvm.ptr) -> i64 {
  %c0 = arith.constant 0 : i64
  %c1 = arith.constant 1 : i64
  %takes_equal = arith.cmpi ne, %also, %c0 : i64
  %found:2 = scf.while (%from = %low, %to = %high) : (i64, i64) -> (i64, i64) {
    %more = arith.cmpi slt, %from, %to : i64
    scf.condition(%more) %from, %to : i64, i64
  } do {
  ^bb0(%from: i64, %to: i64):
    %sum = arith.addi %from, %to : i64
    %middle = arith.shrui %sum, %c1 : i64
    %there = llvm.call @key_number_4(%column, %middle, %step, %how) : (!llvm.ptr, i64, i64, !llvm.ptr) -> !unit
    %less = arith.cmpi ult, %there, %number : !unit
    %same = arith.cmpi eq, %there, %number : !unit
    %counts = arith.andi %same, %takes_equal : i1
    %before = arith.ori %less, %counts : i1
    %behind = arith.addi %middle, %c1 : i64
    %next_from = arith.select %before, %behind, %from : i64
    %next_to = arith.select %before, %to, %middle : i64
    scf.yield %next_from, %next_to : i64, i64
  }
  llvm.return %found#0 : i64
}

// The member of the widest range between `low` and `high`, and how wide it is.
llvm.func @widest(%low: !llvm.ptr, %high: !llvm.ptr, %members: i64) -> !llvm.struct<(i64, i64)>
    attributes {always_inline} {
  %c0 = arith.constant 0 : i64
  %c1 = arith.constant 1 : i64
  %none = llvm.mlir.undef : !llvm.struct<(i64, i64)>
  %best:2 = scf.for %j = %c0 to %members step %c1 iter_args(%which = %c0, %most = %c0) -> (i64, i64) : i64 {
    %from = llvm.call @word(%low, %j) : (!llvm.ptr, i64) -> i64
    %to = llvm.call @word(%high, %j) : (!llvm.ptr, i64) -> i64
    %width = arith.subi %to, %from : i64
    %wider = arith.cmpi sgt, %width, %most : i64
    %next = arith.select %wider, %j, %which : i64
    %width_now = arith.select %wider, %width, %most : i64
    scf.yield %next, %width_now : i64, i64
  }
  %some = llvm.insertvalue %best#0, %none[0] : !llvm.struct<(i64, i64)>
  %result = llvm.insertvalue %best#1, %some[1] : !llvm.struct<(i64, i64)>
  llvm.return %result : !llvm.struct<(i64, i64)>
}

// Find for each member how many of the first `target` elements of all are its own: in the end low[j]. An element comes
// before another of the same number where its member does. The middle one of the widest range that is left is one of the
// first or not: what comes before it is then, too, or what comes behind it is not either.
llvm.func @split_columns_4(%columns: !llvm.ptr, %members: i64, %origin: i64, %count: i64, %step: i64, %target: i64,
    %low: !llvm.ptr, %high: !llvm.ptr, %middle: !llvm.ptr, %how: !llvm.ptr) {
  %c0 = arith.constant 0 : i64
  %c1 = arith.constant 1 : i64
  scf.for %j = %c0 to %members step %c1 : i64 {
    llvm.call @set_word(%low, %j, %c0) : (!llvm.ptr, i64, i64) -> ()
    llvm.call @set_word(%high, %j, %count) : (!llvm.ptr, i64, i64) -> ()
  }
  %last:2 = scf.while (%turn = %c0) : (i64) -> (i64, i64) {
    %found = llvm.call @widest(%low, %high, %members) : (!llvm.ptr, !llvm.ptr, i64) -> !llvm.struct<(i64, i64)>
    %which = llvm.extractvalue %found[0] : !llvm.struct<(i64, i64)>
    %width = llvm.extractvalue %found[1] : !llvm.struct<(i64, i64)>
    %more = arith.cmpi sgt, %width, %c0 : i64
    scf.condition(%more) %which, %width : i64, i64
  } do {
  ^bb0(%which: i64, %width: i64):
    %from = llvm.call @word(%low, %which) : (!llvm.ptr, i64) -> i64
    %half = arith.shrui %width, %c1 : i64
    %at = arith.addi %from, %half : i64
    %whole = llvm.call @word(%columns, %which) : (!llvm.ptr, i64) -> i64
    %base = llvm.inttoptr %whole : i64 to !llvm.ptr
    %column = llvm.getelementptr %base[%origin] : (!llvm.ptr, i64) -> !llvm.ptr, i8
    %number = llvm.call @key_number_4(%column, %at, %step, %how) : (!llvm.ptr, i64, i64, !llvm.ptr) -> !unit
    %total = scf.for %j = %c0 to %members step %c1 iter_args(%sum = %c0) -> (i64) : i64 {
      %is_own = arith.cmpi eq, %j, %which : i64
      %before = scf.if %is_own -> (i64) {
        scf.yield %at : i64
      } else {
        %words = llvm.call @word(%columns, %j) : (!llvm.ptr, i64) -> i64
        %start = llvm.inttoptr %words : i64 to !llvm.ptr
        %there = llvm.getelementptr %start[%origin] : (!llvm.ptr, i64) -> !llvm.ptr, i8
        %l = llvm.call @word(%low, %j) : (!llvm.ptr, i64) -> i64
        %h = llvm.call @word(%high, %j) : (!llvm.ptr, i64) -> i64
        %is_earlier = arith.cmpi slt, %j, %which : i64
        %also = arith.extui %is_earlier : i1 to i64
        %n = llvm.call @count_before_4(%there, %step, %l, %h, %number, %also, %how)
          : (!llvm.ptr, i64, i64, i64, !unit, i64, !llvm.ptr) -> i64
        scf.yield %n : i64
      }
      llvm.call @set_word(%middle, %j, %before) : (!llvm.ptr, i64, i64) -> ()
      %next = arith.addi %sum, %before : i64
      scf.yield %next : i64
    }
    %is_first = arith.cmpi slt, %total, %target : i64
    scf.for %j = %c0 to %members step %c1 : i64 {
      %n = llvm.call @word(%middle, %j) : (!llvm.ptr, i64) -> i64
      scf.if %is_first {
        %is_own = arith.cmpi eq, %j, %which : i64
        %itself = arith.extui %is_own : i1 to i64
        %taken = arith.addi %n, %itself : i64
        llvm.call @set_word(%low, %j, %taken) : (!llvm.ptr, i64, i64) -> ()
      } else {
        llvm.call @set_word(%high, %j, %n) : (!llvm.ptr, i64, i64) -> ()
      }
    }
    scf.yield %c0 : i64
  }
  llvm.return
}

// Copy the next element of a run, in all planes; see @merge_runs_4.
llvm.func @copy_next_4(%from: !llvm.ptr, %plane: i64, %to: !llvm.ptr, %to_plane: i64, %planes: i64)
    attributes {always_inline} {
  %c0 = arith.constant 0 : i64
  %c1 = arith.constant 1 : i64
  scf.for %k = %c0 to %planes step %c1 : i64 {
    %there = arith.muli %k, %plane : i64
    %here = arith.muli %k, %to_plane : i64
    %source = llvm.getelementptr %from[%there] : (!llvm.ptr, i64) -> !llvm.ptr, i8
    %target = llvm.getelementptr %to[%here] : (!llvm.ptr, i64) -> !llvm.ptr, i8
    %x = llvm.load %source : !llvm.ptr -> !unit
    llvm.store %x, %target : !unit, !llvm.ptr
  }
  llvm.return
}

// Copy what is left of a run to `to`.
llvm.func @copy_run_4(%from: !llvm.ptr, %left: i64, %run_step: i64, %plane: i64, %to: !llvm.ptr, %step: i64,
    %to_plane: i64, %planes: i64) {
  %c0 = arith.constant 0 : i64
  %c1 = arith.constant 1 : i64
  scf.for %t = %c0 to %left step %c1 : i64 {
    %there = arith.muli %t, %run_step : i64
    %here = arith.muli %t, %step : i64
    %source = llvm.getelementptr %from[%there] : (!llvm.ptr, i64) -> !llvm.ptr, i8
    %target = llvm.getelementptr %to[%here] : (!llvm.ptr, i64) -> !llvm.ptr, i8
    llvm.call @copy_next_4(%source, %plane, %target, %to_plane, %planes) : (!llvm.ptr, i64, !llvm.ptr, i64, i64) -> ()
  }
  llvm.return
}

// Merge two runs, neither of them empty, without a branch on which one comes next: that would be a guess.
llvm.func @merge_two_4(%one: !llvm.ptr, %other: !llvm.ptr, %to: !llvm.ptr, %step: i64, %to_plane: i64, %planes: i64,
    %how: !llvm.ptr) {
  %c0 = arith.constant 0 : i64
  %c1 = arith.constant 1 : i64
  %c2 = arith.constant 2 : i64
  %c3 = arith.constant 3 : i64
  %c4 = arith.constant 4 : i64
  %flip = llvm.call @how_4(%how, %c0) : (!llvm.ptr, i64) -> !unit
  %sign = llvm.call @how_4(%how, %c1) : (!llvm.ptr, i64) -> !unit
  %mask = llvm.call @how_4(%how, %c2) : (!llvm.ptr, i64) -> !unit
  %limit = llvm.call @how_4(%how, %c3) : (!llvm.ptr, i64) -> !unit
  %canonical = llvm.call @how_4(%how, %c4) : (!llvm.ptr, i64) -> !unit
  %a = llvm.load %one : !llvm.ptr -> !llvm.ptr
  %b = llvm.load %other : !llvm.ptr -> !llvm.ptr
  %a_count = llvm.call @word(%one, %c1) : (!llvm.ptr, i64) -> i64
  %b_count = llvm.call @word(%other, %c1) : (!llvm.ptr, i64) -> i64
  %run_step = llvm.call @word(%one, %c2) : (!llvm.ptr, i64) -> i64
  %a_plane = llvm.call @word(%one, %c3) : (!llvm.ptr, i64) -> i64
  %b_plane = llvm.call @word(%other, %c3) : (!llvm.ptr, i64) -> i64
  %a_first = llvm.load %a : !llvm.ptr -> !unit
  %b_first = llvm.load %b : !llvm.ptr -> !unit
  %a_number = llvm.call @number_of_4(%a_first, %flip, %sign, %mask, %limit, %canonical)
    : (!unit, !unit, !unit, !unit, !unit, !unit) -> !unit
  %b_number = llvm.call @number_of_4(%b_first, %flip, %sign, %mask, %limit, %canonical)
    : (!unit, !unit, !unit, !unit, !unit, !unit) -> !unit
  %rest:7 = scf.while (%p = %a, %q = %b, %here = %to, %n = %a_count, %m = %b_count, %x = %a_number, %y = %b_number)
      : (!llvm.ptr, !llvm.ptr, !llvm.ptr, i64, i64, !unit, !unit)
      -> (!llvm.ptr, !llvm.ptr, !llvm.ptr, i64, i64, !unit, !unit) {
    %some = arith.cmpi sgt, %n, %c0 : i64
    %also = arith.cmpi sgt, %m, %c0 : i64
    %both = arith.andi %some, %also : i1
    scf.condition(%both) %p, %q, %here, %n, %m, %x, %y
      : !llvm.ptr, !llvm.ptr, !llvm.ptr, i64, i64, !unit, !unit
  } do {
  ^bb0(%p: !llvm.ptr, %q: !llvm.ptr, %here: !llvm.ptr, %n: i64, %m: i64, %x: !unit, %y: !unit):
    %takes_other = arith.cmpi ult, %y, %x : !unit
    %from = arith.select %takes_other, %q, %p : !llvm.ptr
    %plane = arith.select %takes_other, %b_plane, %a_plane : i64
    llvm.call @copy_next_4(%from, %plane, %here, %to_plane, %planes) : (!llvm.ptr, i64, !llvm.ptr, i64, i64) -> ()
    %one_less = arith.extui %takes_other : i1 to i64
    %kept = arith.subi %c1, %one_less : i64
    %n_left = arith.subi %n, %kept : i64
    %m_left = arith.subi %m, %one_less : i64
    %following = llvm.getelementptr %from[%run_step] : (!llvm.ptr, i64) -> !llvm.ptr, i8
    %left = arith.select %takes_other, %m_left, %n_left : i64
    %more = arith.cmpi sgt, %left, %c0 : i64
    %readable = arith.select %more, %following, %from : !llvm.ptr
    %key = llvm.load %readable : !llvm.ptr -> !unit
    %number = llvm.call @number_of_4(%key, %flip, %sign, %mask, %limit, %canonical)
      : (!unit, !unit, !unit, !unit, !unit, !unit) -> !unit
    %p_next = arith.select %takes_other, %p, %following : !llvm.ptr
    %q_next = arith.select %takes_other, %following, %q : !llvm.ptr
    %x_next = arith.select %takes_other, %x, %number : !unit
    %y_next = arith.select %takes_other, %number, %y : !unit
    %behind = llvm.getelementptr %here[%step] : (!llvm.ptr, i64) -> !llvm.ptr, i8
    scf.yield %p_next, %q_next, %behind, %n_left, %m_left, %x_next, %y_next
      : !llvm.ptr, !llvm.ptr, !llvm.ptr, i64, i64, !unit, !unit
  }
  llvm.call @copy_run_4(%rest#0, %rest#3, %run_step, %a_plane, %rest#2, %step, %to_plane, %planes)
    : (!llvm.ptr, i64, i64, i64, !llvm.ptr, i64, i64, i64) -> ()
  llvm.call @copy_run_4(%rest#1, %rest#4, %run_step, %b_plane, %rest#2, %step, %to_plane, %planes)
    : (!llvm.ptr, i64, i64, i64, !llvm.ptr, i64, i64, i64) -> ()
  llvm.return
}

// Put the runs that are not empty first, in order; return how many there are.
llvm.func @without_empty(%runs: !llvm.ptr, %members: i64) -> i64 {
  %c0 = arith.constant 0 : i64
  %c1 = arith.constant 1 : i64
  %words = arith.constant #RUN_WORDS
  %count = scf.for %j = %c0 to %members step %c1 iter_args(%kept = %c0) -> (i64) : i64 {
    %row = arith.muli %j, %words : i64
    %run = llvm.getelementptr %runs[%row] : (!llvm.ptr, i64) -> !llvm.ptr, i64
    %left = llvm.call @word(%run, %c1) : (!llvm.ptr, i64) -> i64
    %some = arith.cmpi sgt, %left, %c0 : i64
    %next = scf.if %some -> (i64) {
      %to_row = arith.muli %kept, %words : i64
      %to = llvm.getelementptr %runs[%to_row] : (!llvm.ptr, i64) -> !llvm.ptr, i64
      scf.for %k = %c0 to %words step %c1 : i64 {
        %x = llvm.call @word(%run, %k) : (!llvm.ptr, i64) -> i64
        llvm.call @set_word(%to, %k, %x) : (!llvm.ptr, i64, i64) -> ()
      }
      %more = arith.addi %kept, %c1 : i64
      scf.yield %more : i64
    } else {
      scf.yield %kept : i64
    }
    scf.yield %next : i64
  }
  llvm.return %count : i64
}

// Merge the runs of a column, of `total` elements together, to `to`, where elements lie `step` bytes apart and planes
// `to_plane`. heads: room for a number of each run.
llvm.func @merge_runs_4(%runs: !llvm.ptr, %members: i64, %to: !llvm.ptr, %step: i64, %to_plane: i64, %planes: i64,
    %total: i64, %heads: !llvm.ptr, %how: !llvm.ptr) {
  %c1 = arith.constant 1 : i64
  %c2 = arith.constant 2 : i64
  %c3 = arith.constant 3 : i64
  %words = arith.constant #RUN_WORDS
  %count = llvm.call @without_empty(%runs, %members) : (!llvm.ptr, i64) -> i64
  %is_one = arith.cmpi eq, %count, %c1 : i64
  scf.if %is_one {
    %from = llvm.load %runs : !llvm.ptr -> !llvm.ptr
    %run_step = llvm.call @word(%runs, %c2) : (!llvm.ptr, i64) -> i64
    %plane = llvm.call @word(%runs, %c3) : (!llvm.ptr, i64) -> i64
    llvm.call @copy_run_4(%from, %total, %run_step, %plane, %to, %step, %to_plane, %planes)
      : (!llvm.ptr, i64, i64, i64, !llvm.ptr, i64, i64, i64) -> ()
  } else {
    %is_two = arith.cmpi eq, %count, %c2 : i64
    scf.if %is_two {
      %other = llvm.getelementptr %runs[%words] : (!llvm.ptr, i64) -> !llvm.ptr, i64
      llvm.call @merge_two_4(%runs, %other, %to, %step, %to_plane, %planes, %how)
        : (!llvm.ptr, !llvm.ptr, !llvm.ptr, i64, i64, i64, !llvm.ptr) -> ()
    } else {
      llvm.call @merge_many_4(%runs, %count, %to, %step, %to_plane, %planes, %total, %heads, %how)
        : (!llvm.ptr, i64, !llvm.ptr, i64, i64, i64, i64, !llvm.ptr, !llvm.ptr) -> ()
    }
  }
  llvm.return
}

// The same for any number of runs.
llvm.func @merge_many_4(%runs: !llvm.ptr, %members: i64, %to: !llvm.ptr, %step: i64, %to_plane: i64, %planes: i64,
    %total: i64, %heads: !llvm.ptr, %how: !llvm.ptr) {
  %c0 = arith.constant 0 : i64
  %c1 = arith.constant 1 : i64
  %c2 = arith.constant 2 : i64
  %c3 = arith.constant 3 : i64
  %nobody = arith.constant -1 : i64
  %zero = arith.constant 0 : !unit
  %words = arith.constant #RUN_WORDS
  scf.for %j = %c0 to %members step %c1 : i64 {
    %row = arith.muli %j, %words : i64
    %run = llvm.getelementptr %runs[%row] : (!llvm.ptr, i64) -> !llvm.ptr, i64
    %left = llvm.call @word(%run, %c1) : (!llvm.ptr, i64) -> i64
    %some = arith.cmpi sgt, %left, %c0 : i64
    scf.if %some {
      %first = llvm.load %run : !llvm.ptr -> !llvm.ptr
      %number = llvm.call @key_number_4(%first, %c0, %c0, %how) : (!llvm.ptr, i64, i64, !llvm.ptr) -> !unit
      %at = llvm.getelementptr %heads[%j] : (!llvm.ptr, i64) -> !llvm.ptr, !unit
      llvm.store %number, %at : !unit, !llvm.ptr
    }
  }
  scf.for %t = %c0 to %total step %c1 : i64 {
    %best:2 = scf.for %j = %c0 to %members step %c1 iter_args(%which = %nobody, %least = %zero) -> (i64, !unit) : i64 {
      %row = arith.muli %j, %words : i64
      %run = llvm.getelementptr %runs[%row] : (!llvm.ptr, i64) -> !llvm.ptr, i64
      %left = llvm.call @word(%run, %c1) : (!llvm.ptr, i64) -> i64
      %some = arith.cmpi sgt, %left, %c0 : i64
      %at = llvm.getelementptr %heads[%j] : (!llvm.ptr, i64) -> !llvm.ptr, !unit
      %number = llvm.load %at : !llvm.ptr -> !unit
      %less = arith.cmpi ult, %number, %least : !unit
      %is_first = arith.cmpi slt, %which, %c0 : i64
      %better = arith.ori %less, %is_first : i1
      %takes = arith.andi %some, %better : i1
      %next = arith.select %takes, %j, %which : i64
      %number_now = arith.select %takes, %number, %least : !unit
      scf.yield %next, %number_now : i64, !unit
    }
    %row = arith.muli %best#0, %words : i64
    %run = llvm.getelementptr %runs[%row] : (!llvm.ptr, i64) -> !llvm.ptr, i64
    %from = llvm.load %run : !llvm.ptr -> !llvm.ptr
    %left = llvm.call @word(%run, %c1) : (!llvm.ptr, i64) -> i64
    %run_step = llvm.call @word(%run, %c2) : (!llvm.ptr, i64) -> i64
    %plane = llvm.call @word(%run, %c3) : (!llvm.ptr, i64) -> i64
    %offset = arith.muli %t, %step : i64
    %here = llvm.getelementptr %to[%offset] : (!llvm.ptr, i64) -> !llvm.ptr, i8
    llvm.call @copy_next_4(%from, %plane, %here, %to_plane, %planes) : (!llvm.ptr, i64, !llvm.ptr, i64, i64) -> ()
    %fewer = arith.subi %left, %c1 : i64
    %following = llvm.getelementptr %from[%run_step] : (!llvm.ptr, i64) -> !llvm.ptr, i8
    llvm.store %following, %run : !llvm.ptr, !llvm.ptr
    llvm.call @set_word(%run, %c1, %fewer) : (!llvm.ptr, i64, i64) -> ()
    %more = arith.cmpi sgt, %fewer, %c0 : i64
    scf.if %more {
      %number = llvm.call @key_number_4(%following, %c0, %c0, %how) : (!llvm.ptr, i64, i64, !llvm.ptr) -> !unit
      %at = llvm.getelementptr %heads[%best#0] : (!llvm.ptr, i64) -> !llvm.ptr, !unit
      llvm.store %number, %at : !unit, !llvm.ptr
    }
  }
  llvm.return
}

// How keys become numbers, as a table of words that @key_number_4 reads the lowest bytes of.
llvm.func @set_how(%how: !llvm.ptr, %flip: i64, %sign: i64, %mask: i64, %limit: i64, %canonical: i64)
    attributes {always_inline} {
  %c0 = arith.constant 0 : i64
  %c1 = arith.constant 1 : i64
  %c2 = arith.constant 2 : i64
  %c3 = arith.constant 3 : i64
  %c4 = arith.constant 4 : i64
  llvm.call @set_word(%how, %c0, %flip) : (!llvm.ptr, i64, i64) -> ()
  llvm.call @set_word(%how, %c1, %sign) : (!llvm.ptr, i64, i64) -> ()
  llvm.call @set_word(%how, %c2, %mask) : (!llvm.ptr, i64, i64) -> ()
  llvm.call @set_word(%how, %c3, %limit) : (!llvm.ptr, i64, i64) -> ()
  llvm.call @set_word(%how, %c4, %canonical) : (!llvm.ptr, i64, i64) -> ()
  llvm.return
}

// Merge this member's part of all columns to `dst`. slot: where the members' sources are, see @source_of.
llvm.func @merge_from_4(%group: !llvm.ptr, %me: i64, %dst: !llvm.ptr, %planes: i64, %outer: i64, %count: i64,
    %inner: i64, %how: !llvm.ptr, %slot: i64) {
  %c0 = arith.constant 0 : i64
  %c1 = arith.constant 1 : i64
  %c2 = arith.constant 2 : i64
  %c3 = arith.constant 3 : i64
  %width = arith.constant #unit_bytes
  %run_words = arith.constant #RUN_WORDS
  %members = llvm.call @size_of(%group) : (!llvm.ptr) -> i64
  %columns = llvm.alloca %members x i64 : (i64) -> !llvm.ptr
  %from = llvm.alloca %members x i64 : (i64) -> !llvm.ptr
  %to = llvm.alloca %members x i64 : (i64) -> !llvm.ptr
  %high = llvm.alloca %members x i64 : (i64) -> !llvm.ptr
  %middle = llvm.alloca %members x i64 : (i64) -> !llvm.ptr
  %heads = llvm.alloca %members x i64 : (i64) -> !llvm.ptr
  %cells = arith.muli %members, %run_words : i64
  %runs = llvm.alloca %cells x i64 : (i64) -> !llvm.ptr
  scf.for %j = %c0 to %members step %c1 : i64 {
    %source = llvm.call @source_of(%group, %j, %slot) : (!llvm.ptr, i64, i64) -> !llvm.ptr
    %address = llvm.ptrtoint %source : !llvm.ptr to i64
    llvm.call @set_word(%columns, %j, %address) : (!llvm.ptr, i64, i64) -> ()
  }
  %step = arith.muli %inner, %width : i64
  %row = arith.muli %count, %step : i64
  %plane = arith.muli %outer, %row : i64
  %begin = arith.muli %me, %count : i64
  %end = arith.addi %begin, %count : i64
  scf.for %o = %c0 to %outer step %c1 : i64 {
    %row_at = arith.muli %o, %row : i64
    scf.for %i = %c0 to %inner step %c1 : i64 {
      %i_at = arith.muli %i, %width : i64
      %origin = arith.addi %row_at, %i_at : i64
      llvm.call @split_columns_4(%columns, %members, %origin, %count, %step, %begin, %from, %high, %middle, %how)
        : (!llvm.ptr, i64, i64, i64, i64, i64, !llvm.ptr, !llvm.ptr, !llvm.ptr, !llvm.ptr) -> ()
      llvm.call @split_columns_4(%columns, %members, %origin, %count, %step, %end, %to, %high, %middle, %how)
        : (!llvm.ptr, i64, i64, i64, i64, i64, !llvm.ptr, !llvm.ptr, !llvm.ptr, !llvm.ptr) -> ()
      scf.for %j = %c0 to %members step %c1 : i64 {
        %first = llvm.call @word(%from, %j) : (!llvm.ptr, i64) -> i64
        %last = llvm.call @word(%to, %j) : (!llvm.ptr, i64) -> i64
        %n = arith.subi %last, %first : i64
        %skipped = arith.muli %first, %step : i64
        %offset = arith.addi %origin, %skipped : i64
        %start = llvm.call @word(%columns, %j) : (!llvm.ptr, i64) -> i64
        %address = arith.addi %start, %offset : i64
        %cell = arith.muli %j, %run_words : i64
        %run = llvm.getelementptr %runs[%cell] : (!llvm.ptr, i64) -> !llvm.ptr, i64
        llvm.call @set_word(%run, %c0, %address) : (!llvm.ptr, i64, i64) -> ()
        llvm.call @set_word(%run, %c1, %n) : (!llvm.ptr, i64, i64) -> ()
        llvm.call @set_word(%run, %c2, %step) : (!llvm.ptr, i64, i64) -> ()
        llvm.call @set_word(%run, %c3, %plane) : (!llvm.ptr, i64, i64) -> ()
      }
      %target = llvm.getelementptr %dst[%origin] : (!llvm.ptr, i64) -> !llvm.ptr, i8
      llvm.call @merge_runs_4(%runs, %members, %target, %step, %plane, %planes, %count, %heads, %how)
        : (!llvm.ptr, i64, !llvm.ptr, i64, i64, i64, i64, !llvm.ptr, !llvm.ptr) -> ()
    }
  }
  llvm.return
}

llvm.func @mw_merge_4(%ctx: !llvm.ptr, %number: i64, %src: !llvm.ptr, %dst: !llvm.ptr, %planes: i64, %outer: i64,
    %count: i64, %inner: i64, %flip: i64, %sign: i64, %mask: i64, %limit: i64, %canonical: i64,
    %scratch: !llvm.ptr) -> i32 {
  %c5 = arith.constant 5 : i64
  %published = arith.constant #PUBLISHED
  %width = arith.constant #unit_bytes
  %how = llvm.alloca %c5 x i64 : (i64) -> !llvm.ptr
  llvm.call @set_how(%how, %flip, %sign, %mask, %limit, %canonical) : (!llvm.ptr, i64, i64, i64, i64, i64) -> ()
  %rows = arith.muli %planes, %outer : i64
  %places = arith.muli %count, %inner : i64
  %elements = arith.muli %rows, %places : i64
  %sent = arith.muli %elements, %width : i64
  %group = llvm.call @group_of(%ctx, %number) : (!llvm.ptr, i64) -> !llvm.ptr
  %me = llvm.call @member_of(%ctx, %number) : (!llvm.ptr, i64) -> i64
  %met = llvm.call @begin(%group, %me, %src, %dst, %sent) : (!llvm.ptr, i64, !llvm.ptr, !llvm.ptr, i64) -> i32
  %go = llvm.call @is_ok(%met) : (i32) -> i1
  %code = scf.if %go -> (i32) {
    llvm.call @merge_from_4(%group, %me, %dst, %planes, %outer, %count, %inner, %how, %published)
      : (!llvm.ptr, i64, !llvm.ptr, i64, i64, i64, i64, !llvm.ptr, i64) -> ()
    %parted = llvm.call @end(%group, %me) : (!llvm.ptr, i64) -> i32
    scf.yield %parted : i32
  } else {
    scf.yield %met : i32
  }
  llvm.return %code : i32
}
