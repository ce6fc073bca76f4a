// Ranks that are processes of one host: a rank's arena lies in an MPI shared window, and its inputs and outputs in
// shared memory where the engine has made them (abi.GroupRecord). A member publishes places, and each reader adds the
// address at which it sees that member's memory.
//
// An operand that lies elsewhere, in memory of the user, is copied to a part of the window that the compiler has asked
// for (#staging_bytes). Where there is no room for it, its member publishes NOWHERE: all see that when they meet, and
// all call the MPI library. Code OUTSIDE says so; it also says that the group's members meet in no window at all.
//
// RUN: meshweave-opt %s -p convert-scf-to-cf,convert-arith-to-llvm,convert-cf-to-llvm | filecheck %s
// CHECK-LABEL: llvm.func @rest
// CHECK: llvm.call @sched_yield
// CHECK: llvm.call @sleep_on
// CHECK-LABEL: llvm.func @begin(
// CHECK: llvm.call @reach_of

#GroupRecord_COMM = 8 : i64
#GroupRecord_SHARED = 16 : i64
#GroupRecord_SPINS = 24 : i64
#GroupRecord_POLL = 32 : i64
#GroupRecord_STAGING = 40 : i64
#GroupRecord_STAGING_BYTES = 48 : i64
#GroupRecord_WINDOW_BYTES = 56 : i64
#GroupRecord_BUFFERS_BYTES = 64 : i64
#GroupRecord_YIELDS = 72 : i64
#GroupRecord_MEMBERS = 128 : i64
#GroupRecord_MEMBER = 32 : i64
#GroupRecord_MEMBER_LINE = 0 : i64
#GroupRecord_MEMBER_WINDOW = 8 : i64
#GroupRecord_MEMBER_BUFFERS = 16 : i64
#GroupRecord_SOURCE = 8 : i64
#GroupRecord_TARGET = 16 : i64
#GroupRecord_SLEEPERS = 24 : i64
#GroupRecord_NOWHERE = -1 : i64
#POLL_STATUS = 64 : i64  // where in the memory to poll with the status lies, behind the flag
#POLL_TAG = 79 : i32     // of messages that no one sends
#OUTSIDE = 32766 : i32
#ALIGNMENT = 64 : i64
#staging_bytes = 4096 : i64

llvm.func @sched_yield() -> i32
llvm.func @MPI_Iprobe(i32, i32, i64, !llvm.ptr, !llvm.ptr) -> i32
llvm.func @load_i64(!llvm.ptr, i64) -> i64
llvm.func @load_ptr(!llvm.ptr, i64) -> !llvm.ptr
llvm.func @size_of(!llvm.ptr) -> i64
llvm.func @is_ok(i32) -> i1
llvm.func @meet(!llvm.ptr, i64) -> i32
llvm.func @post_and_wake(!llvm.ptr, i64, !llvm.ptr)
llvm.func @sleep_on(!llvm.ptr, i64, !llvm.ptr)

llvm.mlir.global private constant @nap(dense<[0, 2000000]> : tensor<2xi64>) : !llvm.array<2 x i64>  // s, ns

// The bytes of staging that the program needs; the engine asks before it makes the window.
llvm.func @mw_staging() -> i64 {
  %nbytes = arith.constant #staging_bytes
  llvm.return %nbytes : i64
}

// The pointers that this rank has to a member's memory.
llvm.func @record_of(%group: !llvm.ptr, %member: i64) -> !llvm.ptr attributes {always_inline} {
  %members = arith.constant #GroupRecord_MEMBERS
  %bytes = arith.constant #GroupRecord_MEMBER
  %behind = arith.muli %member, %bytes : i64
  %offset = arith.addi %behind, %members : i64
  %at = llvm.getelementptr %group[%offset] : (!llvm.ptr, i64) -> !llvm.ptr, i8
  llvm.return %at : !llvm.ptr
}

// A member's line; the count of its arrivals begins it.
llvm.func @arrivals_of(%group: !llvm.ptr, %member: i64) -> !llvm.ptr attributes {always_inline} {
  %field = arith.constant #GroupRecord_MEMBER_LINE
  %record = llvm.call @record_of(%group, %member) : (!llvm.ptr, i64) -> !llvm.ptr
  %line = llvm.call @load_ptr(%record, %field) : (!llvm.ptr, i64) -> !llvm.ptr
  llvm.return %line : !llvm.ptr
}

// The place that a member has published at `field` of its line, in this rank's address space.
llvm.func @published(%group: !llvm.ptr, %member: i64, %field: i64) -> !llvm.ptr attributes {always_inline} {
  %c1 = arith.constant 1 : i64
  %word_bytes = arith.constant 8 : i64
  %bases = arith.constant #GroupRecord_MEMBER_WINDOW
  %record = llvm.call @record_of(%group, %member) : (!llvm.ptr, i64) -> !llvm.ptr
  %line = llvm.call @arrivals_of(%group, %member) : (!llvm.ptr, i64) -> !llvm.ptr
  %word = llvm.call @load_i64(%line, %field) : (!llvm.ptr, i64) -> i64
  %segment = arith.andi %word, %c1 : i64
  %entry = arith.muli %segment, %word_bytes : i64
  %base_at = arith.addi %entry, %bases : i64
  %base = llvm.call @load_ptr(%record, %base_at) : (!llvm.ptr, i64) -> !llvm.ptr
  %offset = arith.shrsi %word, %c1 : i64
  %at = llvm.getelementptr %base[%offset] : (!llvm.ptr, i64) -> !llvm.ptr, i8
  llvm.return %at : !llvm.ptr
}

llvm.func @source_published(%group: !llvm.ptr, %member: i64) -> !llvm.ptr attributes {always_inline} {
  %field = arith.constant #GroupRecord_SOURCE
  %value = llvm.call @published(%group, %member, %field) : (!llvm.ptr, i64, i64) -> !llvm.ptr
  llvm.return %value : !llvm.ptr
}

llvm.func @target_published(%group: !llvm.ptr, %member: i64) -> !llvm.ptr attributes {always_inline} {
  %field = arith.constant #GroupRecord_TARGET
  %value = llvm.call @published(%group, %member, %field) : (!llvm.ptr, i64, i64) -> !llvm.ptr
  llvm.return %value : !llvm.ptr
}

// A member's arena begins its window.
llvm.func @arena_of(%group: !llvm.ptr, %member: i64) -> !llvm.ptr attributes {always_inline} {
  %field = arith.constant #GroupRecord_MEMBER_WINDOW
  %record = llvm.call @record_of(%group, %member) : (!llvm.ptr, i64) -> !llvm.ptr
  %window = llvm.call @load_ptr(%record, %field) : (!llvm.ptr, i64) -> !llvm.ptr
  llvm.return %window : !llvm.ptr
}

// Set a counter of one's own, and wake who sleeps on it.
llvm.func @set_counter(%counter: !llvm.ptr, %value: i64) {
  %field = arith.constant #GroupRecord_SLEEPERS
  %sleepers = llvm.getelementptr %counter[%field] : (!llvm.ptr, i64) -> !llvm.ptr, i8
  llvm.call @post_and_wake(%counter, %value, %sleepers) : (!llvm.ptr, i64, !llvm.ptr) -> ()
  llvm.return
}

llvm.func @spins_of(%group: !llvm.ptr) -> i64 attributes {always_inline} {
  %field = arith.constant #GroupRecord_SPINS
  %spins = llvm.call @load_i64(%group, %field) : (!llvm.ptr, i64) -> i64
  llvm.return %spins : i64
}

// Nobody leaves a wait: where a rank has failed, the engine ends the processes.
llvm.func @must_leave(%group: !llvm.ptr) -> i1 attributes {always_inline} {
  %no = arith.constant false
  llvm.return %no : i1
}

// Give the processor away after `looks` in vain at a counter that was `count`: first by yielding it, which costs little
// where another member is next in line; then by sleeping on the counter, so that the system runs whoever is waited for,
// not us, on a busy machine. A nap ends by itself, because a library of MPI may move messages only while it is called:
// a rank that waits here must not hold up what it has sent to another host.
llvm.func @rest(%group: !llvm.ptr, %me: i64, %counter: !llvm.ptr, %count: i64, %looks: i64) attributes {no_inline} {
  %c1 = arith.constant 1 : i64
  %null = llvm.mlir.zero : !llvm.ptr
  %yields_field = arith.constant #GroupRecord_YIELDS
  %sleepers_field = arith.constant #GroupRecord_SLEEPERS
  %poll_field = arith.constant #GroupRecord_POLL
  %spins = llvm.call @spins_of(%group) : (!llvm.ptr) -> i64
  %yields = llvm.call @load_i64(%group, %yields_field) : (!llvm.ptr, i64) -> i64
  %most = arith.addi %spins, %yields : i64
  %is_soon = arith.cmpi slt, %looks, %most : i64
  scf.if %is_soon {
    %ignored = llvm.call @sched_yield() : () -> i32
  } else {
    %sleepers = llvm.getelementptr %counter[%sleepers_field] : (!llvm.ptr, i64) -> !llvm.ptr, i8
    %nap = llvm.mlir.addressof @nap : !llvm.ptr
    %before = llvm.atomicrmw add %sleepers, %c1 seq_cst : !llvm.ptr, i64
    llvm.call @sleep_on(%counter, %count, %nap) : (!llvm.ptr, i64, !llvm.ptr) -> ()
    %after = llvm.atomicrmw sub %sleepers, %c1 seq_cst : !llvm.ptr, i64
    %memory = llvm.call @load_ptr(%group, %poll_field) : (!llvm.ptr, i64) -> !llvm.ptr
    %polls = llvm.icmp "ne" %memory, %null : !llvm.ptr
    scf.if %polls {
      llvm.call @poll(%group, %me, %memory) : (!llvm.ptr, i64, !llvm.ptr) -> ()
    }
  }
  llvm.return
}

// Let MPI move what it has to move: look for a message of our own that there never is.
llvm.func @poll(%group: !llvm.ptr, %me: i64, %memory: !llvm.ptr) {
  %comm_field = arith.constant #GroupRecord_COMM
  %status_at = arith.constant #POLL_STATUS
  %tag = arith.constant #POLL_TAG
  %comm = llvm.call @load_i64(%group, %comm_field) : (!llvm.ptr, i64) -> i64
  %source = arith.trunci %me : i64 to i32
  %status = llvm.getelementptr %memory[%status_at] : (!llvm.ptr, i64) -> !llvm.ptr, i8
  %ignored = llvm.call @MPI_Iprobe(%source, %tag, %comm, %memory, %status)
    : (i32, i32, i64, !llvm.ptr, !llvm.ptr) -> i32
  llvm.return
}

// 0 where the group's members meet in a shared window, else OUTSIDE.
llvm.func @reach_of(%group: !llvm.ptr) -> i32 attributes {always_inline} {
  %c0 = arith.constant 0 : i64
  %ok = arith.constant 0 : i32
  %outside = arith.constant #OUTSIDE
  %field = arith.constant #GroupRecord_SHARED
  %shared = llvm.call @load_i64(%group, %field) : (!llvm.ptr, i64) -> i64
  %is_shared = arith.cmpi ne, %shared, %c0 : i64
  %code = arith.select %is_shared, %ok, %outside : i32
  llvm.return %code : i32
}

// Whether the code of a collective says that it must go by the MPI library.
llvm.func @is_outside(%code: i32) -> i1 attributes {always_inline} {
  %outside = arith.constant #OUTSIDE
  %is = arith.cmpi eq, %code, %outside : i32
  llvm.return %is : i1
}

// The offset of an address in this rank's window or buffers, or -1 where it does not lie there.
llvm.func @offset_within(%address: i64, %base: i64, %nbytes: i64) -> i64 attributes {always_inline} {
  %nowhere = arith.constant #GroupRecord_NOWHERE
  %offset = arith.subi %address, %base : i64
  %inside = arith.cmpi ult, %offset, %nbytes : i64
  %result = arith.select %inside, %offset, %nowhere : i64
  llvm.return %result : i64
}

// What this rank publishes for a pointer of its own: the offset times two, plus one when it lies in the buffers;
// NOWHERE when it lies in no memory that is shared.
llvm.func @place_of(%group: !llvm.ptr, %me: i64, %pointer: !llvm.ptr) -> i64 {
  %c0 = arith.constant 0 : i64
  %c1 = arith.constant 1 : i64
  %nowhere = arith.constant #GroupRecord_NOWHERE
  %window_field = arith.constant #GroupRecord_MEMBER_WINDOW
  %buffers_field = arith.constant #GroupRecord_MEMBER_BUFFERS
  %window_bytes_field = arith.constant #GroupRecord_WINDOW_BYTES
  %buffers_bytes_field = arith.constant #GroupRecord_BUFFERS_BYTES
  %own = llvm.call @record_of(%group, %me) : (!llvm.ptr, i64) -> !llvm.ptr
  %address = llvm.ptrtoint %pointer : !llvm.ptr to i64
  %window = llvm.call @load_i64(%own, %window_field) : (!llvm.ptr, i64) -> i64
  %window_bytes = llvm.call @load_i64(%group, %window_bytes_field) : (!llvm.ptr, i64) -> i64
  %buffers = llvm.call @load_i64(%own, %buffers_field) : (!llvm.ptr, i64) -> i64
  %buffers_bytes = llvm.call @load_i64(%group, %buffers_bytes_field) : (!llvm.ptr, i64) -> i64
  %in_window = llvm.call @offset_within(%address, %window, %window_bytes) : (i64, i64, i64) -> i64
  %in_buffers = llvm.call @offset_within(%address, %buffers, %buffers_bytes) : (i64, i64, i64) -> i64
  %first = arith.shli %in_window, %c1 : i64
  %even = arith.shli %in_buffers, %c1 : i64
  %second = arith.ori %even, %c1 : i64
  %has_window = arith.cmpi sge, %in_window, %c0 : i64
  %has_buffers = arith.cmpi sge, %in_buffers, %c0 : i64
  %other = arith.select %has_buffers, %second, %nowhere : i64
  %place = arith.select %has_window, %first, %other : i64
  llvm.return %place : i64
}

// Where the others can reach `nbytes` that this rank has at `pointer`: there, or in the staging from byte `at` on; null
// when they do not fit.
llvm.func @reachable(%group: !llvm.ptr, %me: i64, %pointer: !llvm.ptr, %nbytes: i64, %at: i64) -> !llvm.ptr {
  %nowhere = arith.constant #GroupRecord_NOWHERE
  %staging_field = arith.constant #GroupRecord_STAGING
  %staging_bytes_field = arith.constant #GroupRecord_STAGING_BYTES
  %null = llvm.mlir.zero : !llvm.ptr
  %place = llvm.call @place_of(%group, %me, %pointer) : (!llvm.ptr, i64, !llvm.ptr) -> i64
  %is_here = arith.cmpi ne, %place, %nowhere : i64
  %result = scf.if %is_here -> (!llvm.ptr) {
    scf.yield %pointer : !llvm.ptr
  } else {
    %staging = llvm.call @load_ptr(%group, %staging_field) : (!llvm.ptr, i64) -> !llvm.ptr
    %room = llvm.call @load_i64(%group, %staging_bytes_field) : (!llvm.ptr, i64) -> i64
    %end = arith.addi %at, %nbytes : i64
    %fits = arith.cmpi sle, %end, %room : i64
    %to = llvm.getelementptr %staging[%at] : (!llvm.ptr, i64) -> !llvm.ptr, i8
    %found = arith.select %fits, %to, %null : !llvm.ptr
    scf.yield %found : !llvm.ptr
  }
  llvm.return %result : !llvm.ptr
}

// Copy `nbytes` unless they are there already, or there is no room for them.
llvm.func @stage(%to: !llvm.ptr, %from: !llvm.ptr, %nbytes: i64) {
  %null = llvm.mlir.zero : !llvm.ptr
  %moves = llvm.icmp "ne" %to, %from : !llvm.ptr
  %fits = llvm.icmp "ne" %to, %null : !llvm.ptr
  %copies = arith.andi %moves, %fits : i1
  scf.if %copies {
    "llvm.intr.memcpy"(%to, %from, %nbytes) <{isVolatile = false}> : (!llvm.ptr, !llvm.ptr, i64) -> ()
  }
  llvm.return
}

// Publish two places and meet. Where a member has published NOWHERE, all meet once more and get OUTSIDE. What members
// published stays until they meet again, so it is looked at only here.
llvm.func @publish_and_meet(%group: !llvm.ptr, %me: i64, %source: !llvm.ptr, %target: !llvm.ptr) -> i32
    attributes {no_inline} {
  %c0 = arith.constant 0 : i64
  %c1 = arith.constant 1 : i64
  %no = arith.constant false
  %source_field = arith.constant #GroupRecord_SOURCE
  %target_field = arith.constant #GroupRecord_TARGET
  %nowhere = arith.constant #GroupRecord_NOWHERE
  %outside = arith.constant #OUTSIDE
  %line = llvm.call @arrivals_of(%group, %me) : (!llvm.ptr, i64) -> !llvm.ptr
  %source_place = llvm.call @place_of(%group, %me, %source) : (!llvm.ptr, i64, !llvm.ptr) -> i64
  %target_place = llvm.call @place_of(%group, %me, %target) : (!llvm.ptr, i64, !llvm.ptr) -> i64
  %source_at = llvm.getelementptr %line[%source_field] : (!llvm.ptr, i64) -> !llvm.ptr, i8
  %target_at = llvm.getelementptr %line[%target_field] : (!llvm.ptr, i64) -> !llvm.ptr, i8
  llvm.store %source_place, %source_at : i64, !llvm.ptr
  llvm.store %target_place, %target_at : i64, !llvm.ptr
  %met = llvm.call @meet(%group, %me) : (!llvm.ptr, i64) -> i32
  %size = llvm.call @size_of(%group) : (!llvm.ptr) -> i64
  %any = scf.for %j = %c0 to %size step %c1 iter_args(%sofar = %no) -> (i1) : i64 {
    %peer = llvm.call @arrivals_of(%group, %j) : (!llvm.ptr, i64) -> !llvm.ptr
    %place = llvm.call @load_i64(%peer, %source_field) : (!llvm.ptr, i64) -> i64
    %is_lost = arith.cmpi eq, %place, %nowhere : i64
    %either = arith.ori %sofar, %is_lost : i1
    scf.yield %either : i1
  }
  %code = scf.if %any -> (i32) {
    %parted = llvm.call @meet(%group, %me) : (!llvm.ptr, i64) -> i32
    scf.yield %outside : i32
  } else {
    scf.yield %met : i32
  }
  llvm.return %code : i32
}

// Begin a collective whose members read `sent` bytes out of each other's sources. Code 0: all have published.
llvm.func @begin(%group: !llvm.ptr, %me: i64, %src: !llvm.ptr, %dst: !llvm.ptr, %sent: i64) -> i32 {
  %c0 = arith.constant 0 : i64
  %reach = llvm.call @reach_of(%group) : (!llvm.ptr) -> i32
  %in_reach = llvm.call @is_ok(%reach) : (i32) -> i1
  %code = scf.if %in_reach -> (i32) {
    %from = llvm.call @reachable(%group, %me, %src, %sent, %c0) : (!llvm.ptr, i64, !llvm.ptr, i64, i64) -> !llvm.ptr
    llvm.call @stage(%from, %src, %sent) : (!llvm.ptr, !llvm.ptr, i64) -> ()
    %met = llvm.call @publish_and_meet(%group, %me, %from, %dst) : (!llvm.ptr, i64, !llvm.ptr, !llvm.ptr) -> i32
    scf.yield %met : i32
  } else {
    scf.yield %reach : i32
  }
  llvm.return %code : i32
}

llvm.func @end(%group: !llvm.ptr, %me: i64) -> i32 attributes {always_inline} {
  %met = llvm.call @meet(%group, %me) : (!llvm.ptr, i64) -> i32
  llvm.return %met : i32
}

// Where the others write to the target of a collective that sends and receives `sent` bytes: there, or in the staging
// behind what is sent.
llvm.func @reachable_target(%group: !llvm.ptr, %me: i64, %dst: !llvm.ptr, %sent: i64) -> !llvm.ptr {
  %alignment = arith.constant #ALIGNMENT
  %units = arith.ceildivui %sent, %alignment : i64
  %behind = arith.muli %units, %alignment : i64
  %to = llvm.call @reachable(%group, %me, %dst, %sent, %behind) : (!llvm.ptr, i64, !llvm.ptr, i64, i64) -> !llvm.ptr
  llvm.return %to : !llvm.ptr
}

// The same for a collective whose members write to each other's targets: without room for one of both, NOWHERE is said
// of the source.
llvm.func @begin_writing(%group: !llvm.ptr, %me: i64, %src: !llvm.ptr, %dst: !llvm.ptr, %sent: i64) -> i32 {
  %c0 = arith.constant 0 : i64
  %null = llvm.mlir.zero : !llvm.ptr
  %reach = llvm.call @reach_of(%group) : (!llvm.ptr) -> i32
  %in_reach = llvm.call @is_ok(%reach) : (i32) -> i1
  %code = scf.if %in_reach -> (i32) {
    %to = llvm.call @reachable_target(%group, %me, %dst, %sent) : (!llvm.ptr, i64, !llvm.ptr, i64) -> !llvm.ptr
    %found = llvm.call @reachable(%group, %me, %src, %sent, %c0) : (!llvm.ptr, i64, !llvm.ptr, i64, i64) -> !llvm.ptr
    %is_lost = llvm.icmp "eq" %to, %null : !llvm.ptr
    %from = arith.select %is_lost, %null, %found : !llvm.ptr
    llvm.call @stage(%from, %src, %sent) : (!llvm.ptr, !llvm.ptr, i64) -> ()
    %met = llvm.call @publish_and_meet(%group, %me, %from, %to) : (!llvm.ptr, i64, !llvm.ptr, !llvm.ptr) -> i32
    scf.yield %met : i32
  } else {
    scf.yield %reach : i32
  }
  llvm.return %code : i32
}
llvm.func @end_writing(%group: !llvm.ptr, %me: i64, %dst: !llvm.ptr, %sent: i64) -> i32 {
  %met = llvm.call @meet(%group, %me) : (!llvm.ptr, i64) -> i32
  %to = llvm.call @reachable_target(%group, %me, %dst, %sent) : (!llvm.ptr, i64, !llvm.ptr, i64) -> !llvm.ptr
  llvm.call @stage(%dst, %to, %sent) : (!llvm.ptr, !llvm.ptr, i64) -> ()
  llvm.return %met : i32
}
