// How the cores of a rank share the work of a kernel. abi.CoresBlock says how the block lies in memory.
//
// The work is cut into pieces by the program, not by the cores: who does a piece does not show in its results. The rank
// posts the work and takes pieces itself, until none is left; helpers, which are threads in @mw_help, take what they
// find. A helper that comes late finds nothing, and the rank waits only for pieces that somebody has taken.
//
// Both take a piece by lowering the ticket, which holds the number of the work too: nobody takes a piece of one work
// with the function of another.
//
// RUN: meshweave-opt %s -p convert-scf-to-cf,convert-arith-to-llvm,convert-cf-to-llvm | filecheck %s
// CHECK-LABEL: llvm.func @take_piece
// CHECK: llvm.cmpxchg
// CHECK-LABEL: llvm.func @mw_share
// CHECK: llvm.call @post_work
// CHECK: llvm.call @do_pieces
// CHECK: llvm.call @wait_for_change

#CoresBlock_HELPERS = 0 : i64
#CoresBlock_PIECE = 24 : i64
#CoresBlock_ARGUMENTS = 32 : i64
#CoresBlock_SPINS = 16 : i64
#CoresBlock_YIELDS = 40 : i64
#CoresBlock_TICKET = 64 : i64
#CoresBlock_SLEEPERS = 72 : i64
#CoresBlock_DONE = 128 : i64
#CoresBlock_RANK_SLEEPS = 136 : i64
#CoresBlock_LEAVE = -1 : i64

llvm.func @sched_yield() -> i32
llvm.func @load_i64(!llvm.ptr, i64) -> i64
llvm.func @load_ptr(!llvm.ptr, i64) -> !llvm.ptr
llvm.func @sleep_on(!llvm.ptr, i64, !llvm.ptr)
llvm.func @wake(!llvm.ptr)
llvm.func @wake_some(!llvm.ptr, i64)
llvm.func @wait_for_change(!llvm.ptr, !llvm.ptr, i64, !llvm.ptr, !llvm.ptr) -> i64

// A field of the block.
llvm.func @cores_field(%block: !llvm.ptr, %field: i64) -> !llvm.ptr attributes {always_inline} {
  %at = llvm.getelementptr %block[%field] : (!llvm.ptr, i64) -> !llvm.ptr, i8
  llvm.return %at : !llvm.ptr
}

// The pieces of a ticket that nobody has taken.
llvm.func @pieces_left(%ticket: i64) -> i64 attributes {always_inline} {
  %half = arith.constant 4294967295 : i64
  %left = arith.andi %ticket, %half : i64
  llvm.return %left : i64
}

// Lower the ticket from `seen`, which has a piece left; returns whether this piece is now the caller's.
llvm.func @take_piece(%block: !llvm.ptr, %seen: i64) -> i1 attributes {always_inline} {
  %c1 = arith.constant 1 : i64
  %field = arith.constant #CoresBlock_TICKET
  %at = llvm.call @cores_field(%block, %field) : (!llvm.ptr, i64) -> !llvm.ptr
  %fewer = arith.subi %seen, %c1 : i64
  %pair = llvm.cmpxchg %at, %seen, %fewer acq_rel acquire : !llvm.ptr, i64
  %taken = llvm.extractvalue %pair[1] : !llvm.struct<(i64, i1)>
  llvm.return %taken : i1
}

// Count a piece as done, and wake the rank where it sleeps.
llvm.func @count_piece(%block: !llvm.ptr) attributes {always_inline} {
  %c0 = arith.constant 0 : i64
  %c1 = arith.constant 1 : i64
  %done_field = arith.constant #CoresBlock_DONE
  %sleeps_field = arith.constant #CoresBlock_RANK_SLEEPS
  %done = llvm.call @cores_field(%block, %done_field) : (!llvm.ptr, i64) -> !llvm.ptr
  %sleeps = llvm.call @cores_field(%block, %sleeps_field) : (!llvm.ptr, i64) -> !llvm.ptr
  %before = llvm.atomicrmw add %done, %c1 seq_cst : !llvm.ptr, i64
  %sleeping = llvm.load %sleeps atomic seq_cst {alignment = 8 : i64} : !llvm.ptr -> i64
  %asleep = arith.cmpi ne, %sleeping, %c0 : i64
  scf.if %asleep {
    llvm.call @wake(%done) : (!llvm.ptr) -> ()
  }
  llvm.return
}

// Do pieces of the work of the ticket until none is left; returns the last ticket. scratch: memory of this core, null
// for the rank's own.
llvm.func @do_pieces(%block: !llvm.ptr, %scratch: !llvm.ptr) -> i64 {
  %c0 = arith.constant 0 : i64
  %c1 = arith.constant 1 : i64
  %leave = arith.constant #CoresBlock_LEAVE
  %ticket_field = arith.constant #CoresBlock_TICKET
  %piece_field = arith.constant #CoresBlock_PIECE
  %arguments_field = arith.constant #CoresBlock_ARGUMENTS
  %at = llvm.call @cores_field(%block, %ticket_field) : (!llvm.ptr, i64) -> !llvm.ptr
  cf.br ^look
^look:
  %ticket = llvm.load %at atomic acquire {alignment = 8 : i64} : !llvm.ptr -> i64
  %left = llvm.call @pieces_left(%ticket) : (i64) -> i64
  %some = arith.cmpi ne, %left, %c0 : i64
  %stays = arith.cmpi ne, %ticket, %leave : i64
  %is_there = arith.andi %some, %stays : i1
  cf.cond_br %is_there, ^take, ^end
^take:
  // Read before the piece is taken: once it is, the rank posts no other work until it is done.
  %piece = llvm.call @load_ptr(%block, %piece_field) : (!llvm.ptr, i64) -> !llvm.ptr
  %arguments = llvm.call @load_ptr(%block, %arguments_field) : (!llvm.ptr, i64) -> !llvm.ptr
  %taken = llvm.call @take_piece(%block, %ticket) : (!llvm.ptr, i64) -> i1
  cf.cond_br %taken, ^do, ^look
^do:
  %number = arith.subi %left, %c1 : i64
  llvm.call %piece(%arguments, %number, %scratch) : !llvm.ptr, (!llvm.ptr, i64, !llvm.ptr) -> ()
  llvm.call @count_piece(%block) : (!llvm.ptr) -> ()
  cf.br ^look
^end:
  llvm.return %ticket : i64
}

// Post work: `count` pieces, of which the caller will take one at least.
llvm.func @post_work(%block: !llvm.ptr, %piece: !llvm.ptr, %arguments: !llvm.ptr, %count: i64) {
  %c0 = arith.constant 0 : i64
  %c1 = arith.constant 1 : i64
  %c32 = arith.constant 32 : i64
  %piece_field = arith.constant #CoresBlock_PIECE
  %arguments_field = arith.constant #CoresBlock_ARGUMENTS
  %ticket_field = arith.constant #CoresBlock_TICKET
  %done_field = arith.constant #CoresBlock_DONE
  %sleepers_field = arith.constant #CoresBlock_SLEEPERS
  %piece_at = llvm.call @cores_field(%block, %piece_field) : (!llvm.ptr, i64) -> !llvm.ptr
  %arguments_at = llvm.call @cores_field(%block, %arguments_field) : (!llvm.ptr, i64) -> !llvm.ptr
  %ticket_at = llvm.call @cores_field(%block, %ticket_field) : (!llvm.ptr, i64) -> !llvm.ptr
  %done_at = llvm.call @cores_field(%block, %done_field) : (!llvm.ptr, i64) -> !llvm.ptr
  %sleepers_at = llvm.call @cores_field(%block, %sleepers_field) : (!llvm.ptr, i64) -> !llvm.ptr
  llvm.store %piece, %piece_at : !llvm.ptr, !llvm.ptr
  llvm.store %arguments, %arguments_at : !llvm.ptr, !llvm.ptr
  llvm.store %c0, %done_at : i64, !llvm.ptr
  %last = llvm.load %ticket_at : !llvm.ptr -> i64
  %number = arith.shrui %last, %c32 : i64
  %next = arith.addi %number, %c1 : i64
  %upper = arith.shli %next, %c32 : i64
  %ticket = arith.ori %upper, %count : i64
  %ignored = llvm.atomicrmw xchg %ticket_at, %ticket seq_cst : !llvm.ptr, i64
  %sleeping = llvm.load %sleepers_at atomic seq_cst {alignment = 8 : i64} : !llvm.ptr -> i64
  %asleep = arith.cmpi ne, %sleeping, %c0 : i64
  scf.if %asleep {
    %others = arith.subi %count, %c1 : i64
    llvm.call @wake_some(%ticket_at, %others) : (!llvm.ptr, i64) -> ()
  }
  llvm.return
}

// Do work in `count` pieces, each a call of `piece` with the arguments, its number and the core's scratch memory. Returns when all are done.
llvm.func @mw_share(%block: !llvm.ptr, %piece: !llvm.ptr, %arguments: !llvm.ptr, %count: i64) {
  %c0 = arith.constant 0 : i64
  %c1 = arith.constant 1 : i64
  %null = llvm.mlir.zero : !llvm.ptr
  %helpers_field = arith.constant #CoresBlock_HELPERS
  %done_field = arith.constant #CoresBlock_DONE
  %sleeps_field = arith.constant #CoresBlock_RANK_SLEEPS
  %has_block = llvm.icmp "ne" %block, %null : !llvm.ptr
  cf.cond_br %has_block, ^ask, ^alone
^ask:
  %helpers = llvm.call @load_i64(%block, %helpers_field) : (!llvm.ptr, i64) -> i64
  %has_helpers = arith.cmpi ne, %helpers, %c0 : i64
  cf.cond_br %has_helpers, ^post, ^alone
^alone:
  scf.for %number = %c0 to %count step %c1 : i64 {
    llvm.call %piece(%arguments, %number, %null) : !llvm.ptr, (!llvm.ptr, i64, !llvm.ptr) -> ()
  }
  llvm.return
^post:
  %done = llvm.call @cores_field(%block, %done_field) : (!llvm.ptr, i64) -> !llvm.ptr
  %sleeps = llvm.call @cores_field(%block, %sleeps_field) : (!llvm.ptr, i64) -> !llvm.ptr
  llvm.call @post_work(%block, %piece, %arguments, %count) : (!llvm.ptr, !llvm.ptr, !llvm.ptr, i64) -> ()
  %ticket = llvm.call @do_pieces(%block, %null) : (!llvm.ptr, !llvm.ptr) -> i64
  %first = llvm.load %done atomic acquire {alignment = 8 : i64} : !llvm.ptr -> i64
  cf.br ^check(%first : i64)
^check(%seen: i64):
  %all = arith.cmpi eq, %seen, %count : i64
  cf.cond_br %all, ^end, ^wait
^wait:
  %now = llvm.call @wait_for_change(%block, %done, %seen, %sleeps, %null)
    : (!llvm.ptr, !llvm.ptr, i64, !llvm.ptr, !llvm.ptr) -> i64
  cf.br ^check(%now : i64)
^end:
  llvm.return
}

// Sleep until there is work; whoever posts it looks for sleepers after that.
llvm.func @sleep_until_work(%block: !llvm.ptr) attributes {no_inline} {
  %c0 = arith.constant 0 : i64
  %c1 = arith.constant 1 : i64
  %null = llvm.mlir.zero : !llvm.ptr
  %ticket_field = arith.constant #CoresBlock_TICKET
  %sleepers_field = arith.constant #CoresBlock_SLEEPERS
  %at = llvm.call @cores_field(%block, %ticket_field) : (!llvm.ptr, i64) -> !llvm.ptr
  %sleepers = llvm.call @cores_field(%block, %sleepers_field) : (!llvm.ptr, i64) -> !llvm.ptr
  %told = llvm.atomicrmw add %sleepers, %c1 seq_cst : !llvm.ptr, i64
  // A word whose lower half is 0 has no work: the system compares that half again before the thread sleeps.
  llvm.call @sleep_on(%at, %c0, %null) : (!llvm.ptr, i64, !llvm.ptr) -> ()
  %untold = llvm.atomicrmw sub %sleepers, %c1 seq_cst : !llvm.ptr, i64
  llvm.return
}

// Where a helper stays until it is to leave: it looks for work, soon at first, then less often, then sleeps.
llvm.func @mw_help(%block: !llvm.ptr, %scratch: !llvm.ptr) {
  %c0 = arith.constant 0 : i64
  %c1 = arith.constant 1 : i64
  %leave = arith.constant #CoresBlock_LEAVE
  %spins_field = arith.constant #CoresBlock_SPINS
  %yields_field = arith.constant #CoresBlock_YIELDS
  %spins = llvm.call @load_i64(%block, %spins_field) : (!llvm.ptr, i64) -> i64
  %yields = llvm.call @load_i64(%block, %yields_field) : (!llvm.ptr, i64) -> i64
  %most = arith.addi %spins, %yields : i64
  cf.br ^look(%c0, %c0 : i64, i64)
^look(%n: i64, %last: i64):
  %ticket = llvm.call @do_pieces(%block, %scratch) : (!llvm.ptr, !llvm.ptr) -> i64
  %is_last = arith.cmpi eq, %ticket, %leave : i64
  cf.cond_br %is_last, ^leave, ^idle
^idle:
  // A ticket other than the last one: there was work, and more of it will come soon.
  %same = arith.cmpi eq, %ticket, %last : i64
  %waited = arith.select %same, %n, %c0 : i64
  %next = arith.addi %waited, %c1 : i64
  %is_soon = arith.cmpi slt, %waited, %spins : i64
  cf.cond_br %is_soon, ^pause, ^later
^pause:
  llvm.call_intrinsic "llvm.x86.sse2.pause"() : () -> ()
  cf.br ^look(%next, %ticket : i64, i64)
^later:
  %is_awake = arith.cmpi slt, %waited, %most : i64
  cf.cond_br %is_awake, ^yield, ^sleep
^yield:
  %ignored = llvm.call @sched_yield() : () -> i32
  cf.br ^look(%next, %ticket : i64, i64)
^sleep:
  llvm.call @sleep_until_work(%block) : (!llvm.ptr) -> ()
  cf.br ^look(%waited, %ticket : i64, i64)
^leave:
  llvm.return
}

// Let the helpers leave. No work may be under way.
llvm.func @mw_dismiss(%block: !llvm.ptr) {
  %leave = arith.constant #CoresBlock_LEAVE
  %field = arith.constant #CoresBlock_TICKET
  %at = llvm.call @cores_field(%block, %field) : (!llvm.ptr, i64) -> !llvm.ptr
  %ignored = llvm.atomicrmw xchg %at, %leave seq_cst : !llvm.ptr, i64
  llvm.call @wake(%at) : (!llvm.ptr) -> ()
  llvm.return
}
