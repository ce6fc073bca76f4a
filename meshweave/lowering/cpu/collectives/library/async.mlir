// Collectives that are started before they are waited for, between ranks that see each other's memory.
//
// A start copies what the rank sends to its area (abi.AsyncArea) and says so; it waits for no one, unless a member has
// not yet read what was sent two starts ago. A wait waits until all members have started, and pulls what it needs out
// of their areas: it never waits for a member to come to its own wait, so a late rank holds no one up before its result
// is wanted. Each collective of a program has an area of its own, at the same offset in every rank's arena, so any
// number of them may be under way at once.
//
// RUN: meshweave-opt %s -p convert-scf-to-cf,convert-arith-to-llvm,convert-cf-to-llvm | filecheck %s
// CHECK-LABEL: llvm.func @start
// CHECK: llvm.call @await
// CHECK: "llvm.intr.memcpy"
// CHECK: llvm.call @set_counter

#AsyncArea_SLOT = 128 : i64
#AsyncArea_SLOTS = 2 : i64
#AsyncArea_WAITED = 64 : i64
#ALIGNMENT = 64 : i64
#PUBLISHED = -1 : i64

llvm.func @group_of(!llvm.ptr, i64) -> !llvm.ptr
llvm.func @member_of(!llvm.ptr, i64) -> i64
llvm.func @is_ok(i32) -> i1
llvm.func @await(!llvm.ptr, i64, i64, i64) -> i32
llvm.func @arena_of(!llvm.ptr, i64) -> !llvm.ptr
llvm.func @source_published(!llvm.ptr, i64) -> !llvm.ptr
llvm.func @set_counter(!llvm.ptr, i64)

// The source of a member: what it has published, or, where `slot` is not #PUBLISHED, what it has posted so many bytes
// into its arena.
llvm.func @source_of(%group: !llvm.ptr, %member: i64, %slot: i64) -> !llvm.ptr attributes {always_inline} {
  %none = arith.constant #PUBLISHED
  %is_published = arith.cmpi eq, %slot, %none : i64
  %source = scf.if %is_published -> (!llvm.ptr) {
    %buffer = llvm.call @source_published(%group, %member) : (!llvm.ptr, i64) -> !llvm.ptr
    scf.yield %buffer : !llvm.ptr
  } else {
    %arena = llvm.call @arena_of(%group, %member) : (!llvm.ptr, i64) -> !llvm.ptr
    %posted = llvm.getelementptr %arena[%slot] : (!llvm.ptr, i64) -> !llvm.ptr, i8
    scf.yield %posted : !llvm.ptr
  }
  llvm.return %source : !llvm.ptr
}

// Where the area lies in every member's arena.
llvm.func @area_offset(%group: !llvm.ptr, %me: i64, %area: !llvm.ptr) -> i64 attributes {always_inline} {
  %arena = llvm.call @arena_of(%group, %me) : (!llvm.ptr, i64) -> !llvm.ptr
  %from = llvm.ptrtoint %arena : !llvm.ptr to i64
  %to = llvm.ptrtoint %area : !llvm.ptr to i64
  %offset = arith.subi %to, %from : i64
  llvm.return %offset : i64
}

// Where in an area the copy of start number `generation` lies.
llvm.func @slot_offset(%generation: i64, %nbytes: i64) -> i64 attributes {always_inline} {
  %first = arith.constant #AsyncArea_SLOT
  %slots = arith.constant #AsyncArea_SLOTS
  %alignment = arith.constant #ALIGNMENT
  %units = arith.ceildivui %nbytes, %alignment : i64
  %step = arith.muli %units, %alignment : i64
  %turn = arith.remui %generation, %slots : i64
  %behind = arith.muli %turn, %step : i64
  %offset = arith.addi %behind, %first : i64
  llvm.return %offset : i64
}

// Start a collective that sends `nbytes` at `src`: post a copy.
llvm.func @start(%ctx: !llvm.ptr, %number: i64, %src: !llvm.ptr, %area: !llvm.ptr, %nbytes: i64) -> i32 {
  %c1 = arith.constant 1 : i64
  %slots = arith.constant #AsyncArea_SLOTS
  %waited = arith.constant #AsyncArea_WAITED
  %group = llvm.call @group_of(%ctx, %number) : (!llvm.ptr, i64) -> !llvm.ptr
  %me = llvm.call @member_of(%ctx, %number) : (!llvm.ptr, i64) -> i64
  %before = llvm.load %area : !llvm.ptr -> i64
  %generation = arith.addi %before, %c1 : i64
  %read = arith.subi %generation, %slots : i64
  %offset = llvm.call @area_offset(%group, %me, %area) : (!llvm.ptr, i64, !llvm.ptr) -> i64
  %counters = arith.addi %offset, %waited : i64
  %free = llvm.call @await(%group, %me, %counters, %read) : (!llvm.ptr, i64, i64, i64) -> i32
  %is_free = llvm.call @is_ok(%free) : (i32) -> i1
  scf.if %is_free {
    %slot = llvm.call @slot_offset(%generation, %nbytes) : (i64, i64) -> i64
    %to = llvm.getelementptr %area[%slot] : (!llvm.ptr, i64) -> !llvm.ptr, i8
    "llvm.intr.memcpy"(%to, %src, %nbytes) <{isVolatile = false}> : (!llvm.ptr, !llvm.ptr, i64) -> ()
    llvm.call @set_counter(%area, %generation) : (!llvm.ptr, i64) -> ()
  }
  llvm.return %free : i32
}

// Begin the wait for a collective: all members have started it.
llvm.func @begin_wait(%group: !llvm.ptr, %me: i64, %area: !llvm.ptr) -> i32 {
  %generation = llvm.load %area : !llvm.ptr -> i64
  %offset = llvm.call @area_offset(%group, %me, %area) : (!llvm.ptr, i64, !llvm.ptr) -> i64
  %met = llvm.call @await(%group, %me, %offset, %generation) : (!llvm.ptr, i64, i64, i64) -> i32
  llvm.return %met : i32
}

// Where in the members' arenas lies what each has posted last, for @source_of.
llvm.func @posted_slot(%group: !llvm.ptr, %me: i64, %area: !llvm.ptr, %nbytes: i64) -> i64 {
  %generation = llvm.load %area : !llvm.ptr -> i64
  %offset = llvm.call @area_offset(%group, %me, %area) : (!llvm.ptr, i64, !llvm.ptr) -> i64
  %slot = llvm.call @slot_offset(%generation, %nbytes) : (i64, i64) -> i64
  %posted = arith.addi %offset, %slot : i64
  llvm.return %posted : i64
}

// End the wait: this rank has read what the others posted.
llvm.func @end_wait(%area: !llvm.ptr) {
  %waited = arith.constant #AsyncArea_WAITED
  %generation = llvm.load %area : !llvm.ptr -> i64
  %counter = llvm.getelementptr %area[%waited] : (!llvm.ptr, i64) -> !llvm.ptr, i8
  llvm.call @set_counter(%counter, %generation) : (!llvm.ptr, i64) -> ()
  llvm.return
}
