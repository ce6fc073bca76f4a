// merge between processes: through the shared window of a host, else by messages. There all search together for the
// numbers at which parts begin, bit by bit, by how many of all keys come before; of equal keys earlier members' come
// first. Each then sends what lies between, and merges what it gets. As it lies, this file is for elements of 4 bytes.
//
// Columns are taken #COLUMNS at a time. Of these, scratch memory holds eight tables of a word for each column and each
// begin or end of a part, then what is sent and what comes.
//
// RUN: meshweave-opt %s -p convert-scf-to-cf,convert-arith-to-llvm,convert-cf-to-llvm | filecheck %s
// CHECK-LABEL: llvm.func @mw_merge_4(
// CHECK: llvm.call @window_merge_4(
// CHECK: llvm.call @library_merge_4(

!unit = i32
#unit_bytes = 4 : i64
#unit_bits = 32 : i64
#RUN_WORDS = 4 : i64
#COLUMNS = 4096 : i64
#datatype_i64 = 9 : i64  // word of the engine's table: the datatype of i64
#sum_i64 = 18 : i64      // word of the engine's table: the operation for the sum of i64

llvm.func @word(!llvm.ptr, i64) -> i64
llvm.func @set_word(!llvm.ptr, i64, i64)
llvm.func @set_how(!llvm.ptr, i64, i64, i64, i64, i64)
llvm.func @group_of(!llvm.ptr, i64) -> !llvm.ptr
llvm.func @member_of(!llvm.ptr, i64) -> i64
llvm.func @size_of(!llvm.ptr) -> i64
llvm.func @is_ok(i32) -> i1
llvm.func @is_outside(i32) -> i1
llvm.func @status_of(i32) -> i32
llvm.func @communicator(!llvm.ptr, i64) -> i64
llvm.func @handle(!llvm.ptr, i64) -> i64
llvm.func @byte_type(!llvm.ptr) -> i64
llvm.func @count_before_4(!llvm.ptr, i64, i64, i64, !unit, i64, !llvm.ptr) -> i64
llvm.func @merge_runs_4(!llvm.ptr, i64, !llvm.ptr, i64, i64, i64, i64, !llvm.ptr, !llvm.ptr)
llvm.func @window_merge_4(!llvm.ptr, i64, !llvm.ptr, !llvm.ptr, i64, i64, i64, i64, i64, i64, i64, i64, i64,
  !llvm.ptr) -> i32
llvm.func @MPI_Allreduce(!llvm.ptr, !llvm.ptr, i32, i64, i64, i64) -> i32
llvm.func @MPI_Exscan(!llvm.ptr, !llvm.ptr, i32, i64, i64, i64) -> i32
llvm.func @MPI_Alltoall(!llvm.ptr, i32, i64, !llvm.ptr, i32, i64, i64) -> i32
llvm.func @MPI_Alltoallv(!llvm.ptr, !llvm.ptr, !llvm.ptr, i64, !llvm.ptr, !llvm.ptr, !llvm.ptr, i64, i64) -> i32

// The first of two codes that says that something failed.
llvm.func @first_failed(%a: i32, %b: i32) -> i32 attributes {always_inline} {
  %go = llvm.call @is_ok(%a) : (i32) -> i1
  %code = arith.select %go, %b, %a : i32
  llvm.return %code : i32
}

// Where column `number` begins, in bytes, of rows of `inner` columns.
llvm.func @column_at_4(%number: i64, %count: i64, %inner: i64) -> i64 attributes {always_inline} {
  %width = arith.constant #unit_bytes
  %o = arith.divui %number, %inner : i64
  %i = arith.remui %number, %inner : i64
  %row = arith.muli %count, %inner : i64
  %before = arith.muli %o, %row : i64
  %place = arith.addi %before, %i : i64
  %at = arith.muli %place, %width : i64
  llvm.return %at : i64
}

// Count for each of `columns` columns, and each begin of a part, the keys before the number in `numbers`; where `also`
// is not 0, those of it too.
llvm.func @count_all_4(%src: !llvm.ptr, %first: i64, %columns: i64, %members: i64, %count: i64, %inner: i64,
    %numbers: !llvm.ptr, %also: i64, %counts: !llvm.ptr, %how: !llvm.ptr) {
  %c0 = arith.constant 0 : i64
  %c1 = arith.constant 1 : i64
  %width = arith.constant #unit_bytes
  %step = arith.muli %inner, %width : i64
  %ends = arith.addi %members, %c1 : i64
  scf.for %c = %c0 to %columns step %c1 : i64 {
    %number = arith.addi %first, %c : i64
    %at = llvm.call @column_at_4(%number, %count, %inner) : (i64, i64, i64) -> i64
    %column = llvm.getelementptr %src[%at] : (!llvm.ptr, i64) -> !llvm.ptr, i8
    %row = arith.muli %c, %ends : i64
    scf.for %b = %c0 to %ends step %c1 : i64 {
      %cell = arith.addi %row, %b : i64
      %key_at = llvm.getelementptr %numbers[%cell] : (!llvm.ptr, i64) -> !llvm.ptr, i64
      %key = llvm.load %key_at : !llvm.ptr -> !unit
      %n = llvm.call @count_before_4(%column, %step, %c0, %count, %key, %also, %how)
        : (!llvm.ptr, i64, i64, i64, !unit, i64, !llvm.ptr) -> i64
      llvm.call @set_word(%counts, %cell, %n) : (!llvm.ptr, i64, i64) -> ()
    }
  }
  llvm.return
}

// Add up a table of words over the members.
llvm.func @sum_words(%ctx: !llvm.ptr, %number: i64, %from: !llvm.ptr, %to: !llvm.ptr, %words: i64) -> i32 {
  %datatype = arith.constant #datatype_i64
  %sum = arith.constant #sum_i64
  %comm = llvm.call @communicator(%ctx, %number) : (!llvm.ptr, i64) -> i64
  %type = llvm.call @handle(%ctx, %datatype) : (!llvm.ptr, i64) -> i64
  %operation = llvm.call @handle(%ctx, %sum) : (!llvm.ptr, i64) -> i64
  %n = arith.trunci %words : i64 to i32
  %code = llvm.call @MPI_Allreduce(%from, %to, %n, %type, %operation, %comm)
    : (!llvm.ptr, !llvm.ptr, i32, i64, i64, i64) -> i32
  llvm.return %code : i32
}

// Find the number of the key at each begin of a part, the highest bit first: the largest that at most as many keys come
// before as there are in the parts before. `tried`, `counts`, `sums`: room.
llvm.func @find_numbers_4(%ctx: !llvm.ptr, %number: i64, %src: !llvm.ptr, %first: i64, %columns: i64, %members: i64,
    %count: i64, %inner: i64, %numbers: !llvm.ptr, %tried: !llvm.ptr, %counts: !llvm.ptr, %sums: !llvm.ptr,
    %how: !llvm.ptr) -> i32 {
  %c0 = arith.constant 0 : i64
  %c1 = arith.constant 1 : i64
  %ok = arith.constant 0 : i32
  %bits = arith.constant #unit_bits
  %ends = arith.addi %members, %c1 : i64
  %words = arith.muli %columns, %ends : i64
  scf.for %cell = %c0 to %words step %c1 : i64 {
    llvm.call @set_word(%numbers, %cell, %c0) : (!llvm.ptr, i64, i64) -> ()
  }
  %code = scf.for %turn = %c0 to %bits step %c1 iter_args(%sofar = %ok) -> (i32) : i64 {
    %rest = arith.subi %bits, %turn : i64
    %place = arith.subi %rest, %c1 : i64
    %bit = arith.shli %c1, %place : i64
    scf.for %cell = %c0 to %words step %c1 : i64 {
      %known = llvm.call @word(%numbers, %cell) : (!llvm.ptr, i64) -> i64
      %more = arith.ori %known, %bit : i64
      llvm.call @set_word(%tried, %cell, %more) : (!llvm.ptr, i64, i64) -> ()
    }
    llvm.call @count_all_4(%src, %first, %columns, %members, %count, %inner, %tried, %c0, %counts, %how)
      : (!llvm.ptr, i64, i64, i64, i64, i64, !llvm.ptr, i64, !llvm.ptr, !llvm.ptr) -> ()
    %summed = llvm.call @sum_words(%ctx, %number, %counts, %sums, %words)
      : (!llvm.ptr, i64, !llvm.ptr, !llvm.ptr, i64) -> i32
    scf.for %cell = %c0 to %words step %c1 : i64 {
      %b = arith.remui %cell, %ends : i64
      %target = arith.muli %b, %count : i64
      %before = llvm.call @word(%sums, %cell) : (!llvm.ptr, i64) -> i64
      %fits = arith.cmpi sle, %before, %target : i64
      scf.if %fits {
        %found = llvm.call @word(%tried, %cell) : (!llvm.ptr, i64) -> i64
        llvm.call @set_word(%numbers, %cell, %found) : (!llvm.ptr, i64, i64) -> ()
      }
    }
    %next = llvm.call @first_failed(%sofar, %summed) : (i32, i32) -> i32
    scf.yield %next : i32
  }
  llvm.return %code : i32
}

// Find where parts begin in this member's columns: behind the keys before the number there, and behind as many of that
// number as the members before leave. tables: eight, of which the fourth holds the begins and ends in the end.
llvm.func @find_parts_4(%ctx: !llvm.ptr, %number: i64, %src: !llvm.ptr, %first: i64, %columns: i64, %members: i64,
    %me: i64, %count: i64, %inner: i64, %tables: !llvm.ptr, %how: !llvm.ptr) -> i32 {
  %c0 = arith.constant 0 : i64
  %c1 = arith.constant 1 : i64
  %datatype = arith.constant #datatype_i64
  %sum = arith.constant #sum_i64
  %ends = arith.addi %members, %c1 : i64
  %words = arith.muli %columns, %ends : i64
  %counts = llvm.getelementptr %tables[%words] : (!llvm.ptr, i64) -> !llvm.ptr, i64
  %sums = llvm.getelementptr %counts[%words] : (!llvm.ptr, i64) -> !llvm.ptr, i64
  %parts = llvm.getelementptr %sums[%words] : (!llvm.ptr, i64) -> !llvm.ptr, i64
  %equal = llvm.getelementptr %parts[%words] : (!llvm.ptr, i64) -> !llvm.ptr, i64
  %earlier = llvm.getelementptr %equal[%words] : (!llvm.ptr, i64) -> !llvm.ptr, i64
  %found = llvm.call @find_numbers_4(%ctx, %number, %src, %first, %columns, %members, %count, %inner, %tables, %equal,
    %counts, %sums, %how)
    : (!llvm.ptr, i64, !llvm.ptr, i64, i64, i64, i64, i64, !llvm.ptr, !llvm.ptr, !llvm.ptr, !llvm.ptr, !llvm.ptr) -> i32
  llvm.call @count_all_4(%src, %first, %columns, %members, %count, %inner, %tables, %c0, %counts, %how)
    : (!llvm.ptr, i64, i64, i64, i64, i64, !llvm.ptr, i64, !llvm.ptr, !llvm.ptr) -> ()
  llvm.call @count_all_4(%src, %first, %columns, %members, %count, %inner, %tables, %c1, %equal, %how)
    : (!llvm.ptr, i64, i64, i64, i64, i64, !llvm.ptr, i64, !llvm.ptr, !llvm.ptr) -> ()
  scf.for %cell = %c0 to %words step %c1 : i64 {
    %also = llvm.call @word(%equal, %cell) : (!llvm.ptr, i64) -> i64
    %less = llvm.call @word(%counts, %cell) : (!llvm.ptr, i64) -> i64
    %same = arith.subi %also, %less : i64
    llvm.call @set_word(%equal, %cell, %same) : (!llvm.ptr, i64, i64) -> ()
    llvm.call @set_word(%earlier, %cell, %c0) : (!llvm.ptr, i64, i64) -> ()
  }
  %summed = llvm.call @sum_words(%ctx, %number, %counts, %sums, %words)
    : (!llvm.ptr, i64, !llvm.ptr, !llvm.ptr, i64) -> i32
  %comm = llvm.call @communicator(%ctx, %number) : (!llvm.ptr, i64) -> i64
  %type = llvm.call @handle(%ctx, %datatype) : (!llvm.ptr, i64) -> i64
  %operation = llvm.call @handle(%ctx, %sum) : (!llvm.ptr, i64) -> i64
  %n = arith.trunci %words : i64 to i32
  %scanned = llvm.call @MPI_Exscan(%equal, %earlier, %n, %type, %operation, %comm)
    : (!llvm.ptr, !llvm.ptr, i32, i64, i64, i64) -> i32
  %is_first = arith.cmpi eq, %me, %c0 : i64
  scf.for %cell = %c0 to %words step %c1 : i64 {
    %b = arith.remui %cell, %ends : i64
    %target = arith.muli %b, %count : i64
    %less = llvm.call @word(%counts, %cell) : (!llvm.ptr, i64) -> i64
    %all_less = llvm.call @word(%sums, %cell) : (!llvm.ptr, i64) -> i64
    %same = llvm.call @word(%equal, %cell) : (!llvm.ptr, i64) -> i64
    %scan = llvm.call @word(%earlier, %cell) : (!llvm.ptr, i64) -> i64
    %before = arith.select %is_first, %c0, %scan : i64
    %wanted = arith.subi %target, %all_less : i64
    %left = arith.subi %wanted, %before : i64
    %some = arith.maxsi %left, %c0 : i64
    %taken = arith.minsi %some, %same : i64
    %sum_here = arith.addi %less, %taken : i64
    %is_begin = arith.cmpi eq, %b, %c0 : i64
    %is_end = arith.cmpi eq, %b, %members : i64
    %part = arith.select %is_begin, %c0, %sum_here : i64
    %place = arith.select %is_end, %count, %part : i64
    llvm.call @set_word(%parts, %cell, %place) : (!llvm.ptr, i64, i64) -> ()
  }
  %some_code = llvm.call @first_failed(%found, %summed) : (i32, i32) -> i32
  %code = llvm.call @first_failed(%some_code, %scanned) : (i32, i32) -> i32
  llvm.return %code : i32
}

// Pack what is for each member, one column behind the other, of each its planes; note how many keys of each column.
// lengths, begins: tables of 32 bits, of the bytes for each member and where they begin.
llvm.func @pack_parts_4(%src: !llvm.ptr, %out: !llvm.ptr, %first: i64, %columns: i64, %members: i64, %planes: i64,
    %count: i64, %inner: i64, %plane: i64, %parts: !llvm.ptr, %sends: !llvm.ptr, %lengths: !llvm.ptr,
    %begins: !llvm.ptr) {
  %c0 = arith.constant 0 : i64
  %c1 = arith.constant 1 : i64
  %width = arith.constant #unit_bytes
  %step = arith.muli %inner, %width : i64
  %ends = arith.addi %members, %c1 : i64
  %all = scf.for %j = %c0 to %members step %c1 iter_args(%begin = %c0) -> (i64) : i64 {
    %behind = scf.for %c = %c0 to %columns step %c1 iter_args(%at = %begin) -> (i64) : i64 {
      %row = arith.muli %c, %ends : i64
      %cell = arith.addi %row, %j : i64
      %following = arith.addi %cell, %c1 : i64
      %from = llvm.call @word(%parts, %cell) : (!llvm.ptr, i64) -> i64
      %to = llvm.call @word(%parts, %following) : (!llvm.ptr, i64) -> i64
      %n = arith.subi %to, %from : i64
      %sent_row = arith.muli %j, %columns : i64
      %sent_cell = arith.addi %sent_row, %c : i64
      llvm.call @set_word(%sends, %sent_cell, %n) : (!llvm.ptr, i64, i64) -> ()
      %number = arith.addi %first, %c : i64
      %column = llvm.call @column_at_4(%number, %count, %inner) : (i64, i64, i64) -> i64
      %end = scf.for %k = %c0 to %planes step %c1 iter_args(%here = %at) -> (i64) : i64 {
        %plane_at = arith.muli %k, %plane : i64
        %origin = arith.addi %plane_at, %column : i64
        %last = scf.for %q = %from to %to step %c1 iter_args(%target = %here) -> (i64) : i64 {
          %q_at = arith.muli %q, %step : i64
          %source = arith.addi %origin, %q_at : i64
          %source_at = llvm.getelementptr %src[%source] : (!llvm.ptr, i64) -> !llvm.ptr, i8
          %target_at = llvm.getelementptr %out[%target] : (!llvm.ptr, i64) -> !llvm.ptr, i8
          %x = llvm.load %source_at : !llvm.ptr -> !unit
          llvm.store %x, %target_at : !unit, !llvm.ptr
          %next = arith.addi %target, %width : i64
          scf.yield %next : i64
        }
        scf.yield %last : i64
      }
      scf.yield %end : i64
    }
    %nbytes = arith.subi %behind, %begin : i64
    %length = arith.trunci %nbytes : i64 to i32
    %begin32 = arith.trunci %begin : i64 to i32
    %length_at = llvm.getelementptr %lengths[%j] : (!llvm.ptr, i64) -> !llvm.ptr, i32
    %begin_at = llvm.getelementptr %begins[%j] : (!llvm.ptr, i64) -> !llvm.ptr, i32
    llvm.store %length, %length_at : i32, !llvm.ptr
    llvm.store %begin32, %begin_at : i32, !llvm.ptr
    scf.yield %behind : i64
  }
  llvm.return
}

// Say how many bytes come from each member, and where they begin; `seen` gets that too, in words.
llvm.func @expect_parts_4(%receives: !llvm.ptr, %columns: i64, %members: i64, %planes: i64, %lengths: !llvm.ptr,
    %begins: !llvm.ptr, %seen: !llvm.ptr) {
  %c0 = arith.constant 0 : i64
  %c1 = arith.constant 1 : i64
  %width = arith.constant #unit_bytes
  %item = arith.muli %planes, %width : i64
  %all = scf.for %j = %c0 to %members step %c1 iter_args(%begin = %c0) -> (i64) : i64 {
    %row = arith.muli %j, %columns : i64
    %keys = scf.for %c = %c0 to %columns step %c1 iter_args(%sum = %c0) -> (i64) : i64 {
      %cell = arith.addi %row, %c : i64
      %n = llvm.call @word(%receives, %cell) : (!llvm.ptr, i64) -> i64
      %more = arith.addi %sum, %n : i64
      scf.yield %more : i64
    }
    %nbytes = arith.muli %keys, %item : i64
    %length = arith.trunci %nbytes : i64 to i32
    %begin32 = arith.trunci %begin : i64 to i32
    %length_at = llvm.getelementptr %lengths[%j] : (!llvm.ptr, i64) -> !llvm.ptr, i32
    %begin_at = llvm.getelementptr %begins[%j] : (!llvm.ptr, i64) -> !llvm.ptr, i32
    llvm.store %length, %length_at : i32, !llvm.ptr
    llvm.store %begin32, %begin_at : i32, !llvm.ptr
    llvm.call @set_word(%seen, %j, %begin) : (!llvm.ptr, i64, i64) -> ()
    %behind = arith.addi %begin, %nbytes : i64
    scf.yield %behind : i64
  }
  llvm.return
}

// Merge what has come, column by column. seen: where the next column of each member begins.
llvm.func @merge_parts_4(%in: !llvm.ptr, %dst: !llvm.ptr, %first: i64, %columns: i64, %members: i64, %planes: i64,
    %count: i64, %inner: i64, %plane: i64, %receives: !llvm.ptr, %seen: !llvm.ptr, %runs: !llvm.ptr,
    %heads: !llvm.ptr, %how: !llvm.ptr) {
  %c0 = arith.constant 0 : i64
  %c1 = arith.constant 1 : i64
  %c2 = arith.constant 2 : i64
  %c3 = arith.constant 3 : i64
  %width = arith.constant #unit_bytes
  %run_words = arith.constant #RUN_WORDS
  %step = arith.muli %inner, %width : i64
  %whole = llvm.ptrtoint %in : !llvm.ptr to i64
  scf.for %c = %c0 to %columns step %c1 : i64 {
    scf.for %j = %c0 to %members step %c1 : i64 {
      %row = arith.muli %j, %columns : i64
      %cell = arith.addi %row, %c : i64
      %n = llvm.call @word(%receives, %cell) : (!llvm.ptr, i64) -> i64
      %begin = llvm.call @word(%seen, %j) : (!llvm.ptr, i64) -> i64
      %address = arith.addi %whole, %begin : i64
      %nbytes = arith.muli %n, %width : i64
      %item = arith.muli %nbytes, %planes : i64
      %behind = arith.addi %begin, %item : i64
      llvm.call @set_word(%seen, %j, %behind) : (!llvm.ptr, i64, i64) -> ()
      %run_at = arith.muli %j, %run_words : i64
      %run = llvm.getelementptr %runs[%run_at] : (!llvm.ptr, i64) -> !llvm.ptr, i64
      llvm.call @set_word(%run, %c0, %address) : (!llvm.ptr, i64, i64) -> ()
      llvm.call @set_word(%run, %c1, %n) : (!llvm.ptr, i64, i64) -> ()
      llvm.call @set_word(%run, %c2, %width) : (!llvm.ptr, i64, i64) -> ()
      llvm.call @set_word(%run, %c3, %nbytes) : (!llvm.ptr, i64, i64) -> ()
    }
    %number = arith.addi %first, %c : i64
    %at = llvm.call @column_at_4(%number, %count, %inner) : (i64, i64, i64) -> i64
    %to = llvm.getelementptr %dst[%at] : (!llvm.ptr, i64) -> !llvm.ptr, i8
    llvm.call @merge_runs_4(%runs, %members, %to, %step, %plane, %planes, %count, %heads, %how)
      : (!llvm.ptr, i64, !llvm.ptr, i64, i64, i64, i64, !llvm.ptr, !llvm.ptr) -> ()
  }
  llvm.return
}

// Merge some columns. rooms: a table of eight words for each member.
llvm.func @merge_columns_4(%ctx: !llvm.ptr, %number: i64, %src: !llvm.ptr, %dst: !llvm.ptr, %first: i64,
    %columns: i64, %members: i64, %me: i64, %planes: i64, %count: i64, %inner: i64, %plane: i64, %how: !llvm.ptr,
    %scratch: !llvm.ptr, %rooms: !llvm.ptr) -> i32 {
  %c1 = arith.constant 1 : i64
  %c2 = arith.constant 2 : i64
  %c3 = arith.constant 3 : i64
  %c8 = arith.constant 8 : i64
  %width = arith.constant #unit_bytes
  %ends = arith.addi %members, %c1 : i64
  %words = arith.muli %columns, %ends : i64
  %three = arith.muli %words, %c3 : i64
  %six = arith.muli %three, %c2 : i64
  %parts = llvm.getelementptr %scratch[%three] : (!llvm.ptr, i64) -> !llvm.ptr, i64
  %sends = llvm.getelementptr %scratch[%six] : (!llvm.ptr, i64) -> !llvm.ptr, i64
  %receives = llvm.getelementptr %sends[%words] : (!llvm.ptr, i64) -> !llvm.ptr, i64
  %out = llvm.getelementptr %receives[%words] : (!llvm.ptr, i64) -> !llvm.ptr, i64
  %keys = arith.muli %columns, %count : i64
  %items = arith.muli %keys, %planes : i64
  %nbytes = arith.muli %items, %width : i64
  %in = llvm.getelementptr %out[%nbytes] : (!llvm.ptr, i64) -> !llvm.ptr, i8
  %seen = llvm.getelementptr %rooms[%members] : (!llvm.ptr, i64) -> !llvm.ptr, i64
  %runs = llvm.getelementptr %seen[%members] : (!llvm.ptr, i64) -> !llvm.ptr, i64
  %four = arith.muli %members, %c3 : i64
  %lengths_at = arith.addi %four, %members : i64
  %lengths = llvm.getelementptr %runs[%lengths_at] : (!llvm.ptr, i64) -> !llvm.ptr, i64
  %begins = llvm.getelementptr %lengths[%members] : (!llvm.ptr, i64) -> !llvm.ptr, i32
  %in_lengths = llvm.getelementptr %begins[%members] : (!llvm.ptr, i64) -> !llvm.ptr, i32
  %in_begins = llvm.getelementptr %in_lengths[%members] : (!llvm.ptr, i64) -> !llvm.ptr, i32
  %found = llvm.call @find_parts_4(%ctx, %number, %src, %first, %columns, %members, %me, %count, %inner, %scratch, %how)
    : (!llvm.ptr, i64, !llvm.ptr, i64, i64, i64, i64, i64, i64, !llvm.ptr, !llvm.ptr) -> i32
  llvm.call @pack_parts_4(%src, %out, %first, %columns, %members, %planes, %count, %inner, %plane, %parts, %sends,
    %lengths, %begins)
    : (!llvm.ptr, !llvm.ptr, i64, i64, i64, i64, i64, i64, i64, !llvm.ptr, !llvm.ptr, !llvm.ptr, !llvm.ptr) -> ()
  %comm = llvm.call @communicator(%ctx, %number) : (!llvm.ptr, i64) -> i64
  %byte = llvm.call @byte_type(%ctx) : (!llvm.ptr) -> i64
  %row = arith.muli %columns, %c8 : i64
  %row32 = arith.trunci %row : i64 to i32
  %told = llvm.call @MPI_Alltoall(%sends, %row32, %byte, %receives, %row32, %byte, %comm)
    : (!llvm.ptr, i32, i64, !llvm.ptr, i32, i64, i64) -> i32
  %known = llvm.call @first_failed(%found, %told) : (i32, i32) -> i32
  %go = llvm.call @is_ok(%known) : (i32) -> i1
  %code = scf.if %go -> (i32) {
    llvm.call @expect_parts_4(%receives, %columns, %members, %planes, %in_lengths, %in_begins, %seen)
      : (!llvm.ptr, i64, i64, i64, !llvm.ptr, !llvm.ptr, !llvm.ptr) -> ()
    %moved = llvm.call @MPI_Alltoallv(%out, %lengths, %begins, %byte, %in, %in_lengths, %in_begins, %byte, %comm)
      : (!llvm.ptr, !llvm.ptr, !llvm.ptr, i64, !llvm.ptr, !llvm.ptr, !llvm.ptr, i64, i64) -> i32
    llvm.call @merge_parts_4(%in, %dst, %first, %columns, %members, %planes, %count, %inner, %plane, %receives, %seen,
      %runs, %rooms, %how)
      : (!llvm.ptr, !llvm.ptr, i64, i64, i64, i64, i64, i64, i64, !llvm.ptr, !llvm.ptr, !llvm.ptr, !llvm.ptr, !llvm.ptr)
      -> ()
    scf.yield %moved : i32
  } else {
    scf.yield %known : i32
  }
  llvm.return %code : i32
}

llvm.func @library_merge_4(%ctx: !llvm.ptr, %number: i64, %src: !llvm.ptr, %dst: !llvm.ptr, %planes: i64, %outer: i64,
    %count: i64, %inner: i64, %flip: i64, %sign: i64, %mask: i64, %limit: i64, %canonical: i64,
    %scratch: !llvm.ptr) -> i32 {
  %c0 = arith.constant 0 : i64
  %c5 = arith.constant 5 : i64
  %c8 = arith.constant 8 : i64
  %ok = arith.constant 0 : i32
  %most = arith.constant #COLUMNS
  %width = arith.constant #unit_bytes
  %how = llvm.alloca %c5 x i64 : (i64) -> !llvm.ptr
  llvm.call @set_how(%how, %flip, %sign, %mask, %limit, %canonical) : (!llvm.ptr, i64, i64, i64, i64, i64) -> ()
  %group = llvm.call @group_of(%ctx, %number) : (!llvm.ptr, i64) -> !llvm.ptr
  %me = llvm.call @member_of(%ctx, %number) : (!llvm.ptr, i64) -> i64
  %members = llvm.call @size_of(%group) : (!llvm.ptr) -> i64
  %cells = arith.muli %members, %c8 : i64
  %rooms = llvm.alloca %cells x i64 : (i64) -> !llvm.ptr
  %all = arith.muli %outer, %inner : i64
  %elements = arith.muli %all, %count : i64
  %plane = arith.muli %elements, %width : i64
  %rc = scf.for %first = %c0 to %all step %most iter_args(%sofar = %ok) -> (i32) : i64 {
    %go = llvm.call @is_ok(%sofar) : (i32) -> i1
    %next = scf.if %go -> (i32) {
      %left = arith.subi %all, %first : i64
      %columns = arith.minsi %left, %most : i64
      %r = llvm.call @merge_columns_4(%ctx, %number, %src, %dst, %first, %columns, %members, %me, %planes, %count,
        %inner, %plane, %how, %scratch, %rooms)
        : (!llvm.ptr, i64, !llvm.ptr, !llvm.ptr, i64, i64, i64, i64, i64, i64, i64, i64, !llvm.ptr, !llvm.ptr,
           !llvm.ptr) -> i32
      scf.yield %r : i32
    } else {
      scf.yield %sofar : i32
    }
    scf.yield %next : i32
  }
  %status = llvm.call @status_of(%rc) : (i32) -> i32
  llvm.return %status : i32
}

// Through the window, or by messages.
llvm.func @mw_merge_4(%ctx: !llvm.ptr, %number: i64, %src: !llvm.ptr, %dst: !llvm.ptr, %planes: i64, %outer: i64,
    %count: i64, %inner: i64, %flip: i64, %sign: i64, %mask: i64, %limit: i64, %canonical: i64,
    %scratch: !llvm.ptr) -> i32 {
  %tried = llvm.call @window_merge_4(%ctx, %number, %src, %dst, %planes, %outer, %count, %inner, %flip, %sign, %mask,
    %limit, %canonical, %scratch)
    : (!llvm.ptr, i64, !llvm.ptr, !llvm.ptr, i64, i64, i64, i64, i64, i64, i64, i64, i64, !llvm.ptr) -> i32
  %outside = llvm.call @is_outside(%tried) : (i32) -> i1
  %code = scf.if %outside -> (i32) {
    %called = llvm.call @library_merge_4(%ctx, %number, %src, %dst, %planes, %outer, %count, %inner, %flip, %sign,
      %mask, %limit, %canonical, %scratch)
      : (!llvm.ptr, i64, !llvm.ptr, !llvm.ptr, i64, i64, i64, i64, i64, i64, i64, i64, i64, !llvm.ptr) -> i32
    scf.yield %called : i32
  } else {
    scf.yield %tried : i32
  }
  llvm.return %code : i32
}
