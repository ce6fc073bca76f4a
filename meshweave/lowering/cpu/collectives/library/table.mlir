// Read the table of 8-byte slots that a step is given (abi.Slots), and words of any other table.
//
// RUN: meshweave-opt %s | filecheck %s
// CHECK: llvm.func @group_of(%arg0: !llvm.ptr, %arg1: i64) -> !llvm.ptr

#Slots_FIRST_GROUP = 4 : i64
#Slots_GROUP_WORDS = 2 : i64

// Word `index`, of 64 bits, of a table.
llvm.func @word(%table: !llvm.ptr, %index: i64) -> i64 attributes {always_inline} {
  %at = llvm.getelementptr %table[%index] : (!llvm.ptr, i64) -> !llvm.ptr, i64
  %word = llvm.load %at : !llvm.ptr -> i64
  llvm.return %word : i64
}

// The word of 64 bits that lies `offset` bytes behind `base`.
llvm.func @load_i64(%base: !llvm.ptr, %offset: i64) -> i64 attributes {always_inline} {
  %at = llvm.getelementptr %base[%offset] : (!llvm.ptr, i64) -> !llvm.ptr, i8
  %word = llvm.load %at : !llvm.ptr -> i64
  llvm.return %word : i64
}

// The pointer that lies `offset` bytes behind `base`.
llvm.func @load_ptr(%base: !llvm.ptr, %offset: i64) -> !llvm.ptr attributes {always_inline} {
  %at = llvm.getelementptr %base[%offset] : (!llvm.ptr, i64) -> !llvm.ptr, i8
  %pointer = llvm.load %at : !llvm.ptr -> !llvm.ptr
  llvm.return %pointer : !llvm.ptr
}

// The slot of group `number`: its handle, then this rank's member index in it.
llvm.func @group_slot(%ctx: !llvm.ptr, %number: i64) -> !llvm.ptr attributes {always_inline} {
  %first = arith.constant #Slots_FIRST_GROUP
  %words = arith.constant #Slots_GROUP_WORDS
  %behind = arith.muli %number, %words : i64
  %slot = arith.addi %behind, %first : i64
  %at = llvm.getelementptr %ctx[%slot] : (!llvm.ptr, i64) -> !llvm.ptr, i64
  llvm.return %at : !llvm.ptr
}

// The group's block or record: its first word is the number of members, in every engine.
llvm.func @group_of(%ctx: !llvm.ptr, %number: i64) -> !llvm.ptr attributes {always_inline} {
  %slot = llvm.call @group_slot(%ctx, %number) : (!llvm.ptr, i64) -> !llvm.ptr
  %group = llvm.load %slot : !llvm.ptr -> !llvm.ptr
  llvm.return %group : !llvm.ptr
}

// This rank's member index in the group.
llvm.func @member_of(%ctx: !llvm.ptr, %number: i64) -> i64 attributes {always_inline} {
  %c1 = arith.constant 1 : i64
  %slot = llvm.call @group_slot(%ctx, %number) : (!llvm.ptr, i64) -> !llvm.ptr
  %me = llvm.call @word(%slot, %c1) : (!llvm.ptr, i64) -> i64
  llvm.return %me : i64
}

// The number of members of a group.
llvm.func @size_of(%group: !llvm.ptr) -> i64 attributes {always_inline} {
  %size = llvm.load %group : !llvm.ptr -> i64
  llvm.return %size : i64
}

// Whether the code of a collective says that nothing failed.
llvm.func @is_ok(%code: i32) -> i1 attributes {always_inline} {
  %ok = arith.constant 0 : i32
  %fine = arith.cmpi eq, %code, %ok : i32
  llvm.return %fine : i1
}

// As much of piece `number` of pieces of `step` as there is before `end`.
llvm.func @valid_part(%number: i64, %step: i64, %end: i64) -> i64 attributes {always_inline} {
  %c0 = arith.constant 0 : i64
  %begin = arith.muli %number, %step : i64
  %left = arith.subi %end, %begin : i64
  %some = arith.maxsi %left, %c0 : i64
  %part = arith.minsi %some, %step : i64
  llvm.return %part : i64
}
