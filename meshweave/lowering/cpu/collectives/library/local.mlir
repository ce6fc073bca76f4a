// Ranks that are threads of one process: each reads and writes the others' buffers (abi.WorldLayout). Who waits looks
// at the abort flag too, so that a rank that fails frees the others, and yields the processor after a while, so that
// more ranks than cores get on.
//
// RUN: meshweave-opt %s | filecheck %s
// CHECK-LABEL: llvm.func @set_counter
// CHECK: llvm.store %{{.*}} atomic release {alignment = 8 : i64}

#WorldLayout_ABORT = 0 : i64
#WorldLayout_SPINS = 64 : i64
#WorldLayout_WORLD = 8 : i64
#WorldLayout_MEMBERS = 64 : i64
#WorldLayout_LINE = 64 : i64
#WorldLayout_ARRIVED = 0 : i64
#WorldLayout_SOURCE = 8 : i64
#WorldLayout_TARGET = 16 : i64
#WorldLayout_ARENA = 24 : i64

llvm.func @sched_yield() -> i32
llvm.func @load_i64(!llvm.ptr, i64) -> i64
llvm.func @load_ptr(!llvm.ptr, i64) -> !llvm.ptr
llvm.func @meet(!llvm.ptr, i64) -> i32

// The cache line of a member in its group's block.
llvm.func @line_of(%group: !llvm.ptr, %member: i64) -> !llvm.ptr attributes {always_inline} {
  %members = arith.constant #WorldLayout_MEMBERS
  %line = arith.constant #WorldLayout_LINE
  %behind = arith.muli %member, %line : i64
  %offset = arith.addi %behind, %members : i64
  %at = llvm.getelementptr %group[%offset] : (!llvm.ptr, i64) -> !llvm.ptr, i8
  llvm.return %at : !llvm.ptr
}

// What a member has published at `field` of its line.
llvm.func @published(%group: !llvm.ptr, %member: i64, %field: i64) -> !llvm.ptr attributes {always_inline} {
  %line = llvm.call @line_of(%group, %member) : (!llvm.ptr, i64) -> !llvm.ptr
  %value = llvm.call @load_ptr(%line, %field) : (!llvm.ptr, i64) -> !llvm.ptr
  llvm.return %value : !llvm.ptr
}

llvm.func @arrivals_of(%group: !llvm.ptr, %member: i64) -> !llvm.ptr attributes {always_inline} {
  %arrived = arith.constant #WorldLayout_ARRIVED
  %line = llvm.call @line_of(%group, %member) : (!llvm.ptr, i64) -> !llvm.ptr
  %at = llvm.getelementptr %line[%arrived] : (!llvm.ptr, i64) -> !llvm.ptr, i8
  llvm.return %at : !llvm.ptr
}

llvm.func @source_published(%group: !llvm.ptr, %member: i64) -> !llvm.ptr attributes {always_inline} {
  %field = arith.constant #WorldLayout_SOURCE
  %value = llvm.call @published(%group, %member, %field) : (!llvm.ptr, i64, i64) -> !llvm.ptr
  llvm.return %value : !llvm.ptr
}

llvm.func @target_published(%group: !llvm.ptr, %member: i64) -> !llvm.ptr attributes {always_inline} {
  %field = arith.constant #WorldLayout_TARGET
  %value = llvm.call @published(%group, %member, %field) : (!llvm.ptr, i64, i64) -> !llvm.ptr
  llvm.return %value : !llvm.ptr
}

llvm.func @arena_of(%group: !llvm.ptr, %member: i64) -> !llvm.ptr attributes {always_inline} {
  %field = arith.constant #WorldLayout_ARENA
  %value = llvm.call @published(%group, %member, %field) : (!llvm.ptr, i64, i64) -> !llvm.ptr
  llvm.return %value : !llvm.ptr
}

// Set a counter of one's own, behind all that was written before.
llvm.func @set_counter(%counter: !llvm.ptr, %value: i64) attributes {always_inline} {
  llvm.store %value, %counter atomic release {alignment = 8 : i64} : i64, !llvm.ptr
  llvm.return
}

llvm.func @world_of(%group: !llvm.ptr) -> !llvm.ptr attributes {always_inline} {
  %field = arith.constant #WorldLayout_WORLD
  %world = llvm.call @load_ptr(%group, %field) : (!llvm.ptr, i64) -> !llvm.ptr
  llvm.return %world : !llvm.ptr
}

// How often a wait looks before it rests.
llvm.func @spins_of(%group: !llvm.ptr) -> i64 attributes {always_inline} {
  %field = arith.constant #WorldLayout_SPINS
  %world = llvm.call @world_of(%group) : (!llvm.ptr) -> !llvm.ptr
  %spins = llvm.call @load_i64(%world, %field) : (!llvm.ptr, i64) -> i64
  llvm.return %spins : i64
}

// Whether a rank has failed.
llvm.func @must_leave(%group: !llvm.ptr) -> i1 attributes {always_inline} {
  %c0 = arith.constant 0 : i64
  %field = arith.constant #WorldLayout_ABORT
  %world = llvm.call @world_of(%group) : (!llvm.ptr) -> !llvm.ptr
  %at = llvm.getelementptr %world[%field] : (!llvm.ptr, i64) -> !llvm.ptr, i8
  %flag = llvm.load %at atomic monotonic {alignment = 8 : i64} : !llvm.ptr -> i64
  %failed = arith.cmpi ne, %flag, %c0 : i64
  llvm.return %failed : i1
}

llvm.func @rest(%group: !llvm.ptr, %me: i64, %counter: !llvm.ptr, %count: i64, %looks: i64) attributes {always_inline} {
  %ignored = llvm.call @sched_yield() : () -> i32
  llvm.return
}

// 0 where the members see each other's memory: threads always do.
llvm.func @reach_of(%group: !llvm.ptr) -> i32 attributes {always_inline} {
  %ok = arith.constant 0 : i32
  llvm.return %ok : i32
}

// Begin a collective: publish one's own buffers, and meet. Code 0: all have published.
llvm.func @begin(%group: !llvm.ptr, %me: i64, %src: !llvm.ptr, %dst: !llvm.ptr, %sent: i64) -> i32
    attributes {always_inline} {
  %source = arith.constant #WorldLayout_SOURCE
  %target = arith.constant #WorldLayout_TARGET
  %line = llvm.call @line_of(%group, %me) : (!llvm.ptr, i64) -> !llvm.ptr
  %source_at = llvm.getelementptr %line[%source] : (!llvm.ptr, i64) -> !llvm.ptr, i8
  %target_at = llvm.getelementptr %line[%target] : (!llvm.ptr, i64) -> !llvm.ptr, i8
  llvm.store %src, %source_at : !llvm.ptr, !llvm.ptr
  llvm.store %dst, %target_at : !llvm.ptr, !llvm.ptr
  %met = llvm.call @meet(%group, %me) : (!llvm.ptr, i64) -> i32
  llvm.return %met : i32
}

// End a collective: nobody reads anybody's buffers any more.
llvm.func @end(%group: !llvm.ptr, %me: i64) -> i32 attributes {always_inline} {
  %met = llvm.call @meet(%group, %me) : (!llvm.ptr, i64) -> i32
  llvm.return %met : i32
}

// The same for a collective whose members write to each other's targets.
llvm.func @begin_writing(%group: !llvm.ptr, %me: i64, %src: !llvm.ptr, %dst: !llvm.ptr, %sent: i64) -> i32
    attributes {always_inline} {
  %met = llvm.call @begin(%group, %me, %src, %dst, %sent) : (!llvm.ptr, i64, !llvm.ptr, !llvm.ptr, i64) -> i32
  llvm.return %met : i32
}
llvm.func @end_writing(%group: !llvm.ptr, %me: i64, %dst: !llvm.ptr, %sent: i64) -> i32 attributes {always_inline} {
  %met = llvm.call @meet(%group, %me) : (!llvm.ptr, i64) -> i32
  llvm.return %met : i32
}
