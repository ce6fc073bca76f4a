// How a call reaches the ranks of engine local: compiled code in each rank's thread waits for the next one, so that a
// call is a few stores and Python is on no one's path. abi.ServeBlock says how the block lies in memory.
//
// @mw_serve is where the thread of a rank other than 0 stays: it looks for the next call for a while, then sleeps until
// it is woken. @mw_call hands each rank its table, runs rank 0 itself, and waits for the others; @mw_finish waits again
// where it gave up waiting for a moment. @mw_stop lets the ranks leave.
//
// RUN: meshweave-opt %s -p convert-scf-to-cf,convert-arith-to-llvm,convert-cf-to-llvm | filecheck %s
// CHECK-LABEL: llvm.func @wait_for_change
// CHECK: llvm.call @sched_yield
// CHECK: llvm.call @sleep_on
// CHECK-LABEL: llvm.func @mw_call
// CHECK: llvm.call @start_rank
// CHECK: llvm.call @run_rank
// CHECK: llvm.call @mw_finish

#ServeBlock_NUMBER = 0 : i64
#ServeBlock_NRANKS = 8 : i64
#ServeBlock_SPINS = 16 : i64
#ServeBlock_STEP = 24 : i64
#ServeBlock_WORLD = 32 : i64
#ServeBlock_YIELDS = 40 : i64
#ServeBlock_RANKS = 64 : i64
#ServeBlock_RANK_BYTES = 128 : i64
#ServeBlock_GO = 0 : i64
#ServeBlock_CONTEXT = 8 : i64
#ServeBlock_SERVER_SLEEPS = 16 : i64
#ServeBlock_DONE = 64 : i64
#ServeBlock_RESULT = 72 : i64
#ServeBlock_CALLER_SLEEPS = 80 : i64
#ServeBlock_PENDING = 2 : i32
#Slots_STATUS = 2 : i64     // of a rank's table: its row of the status board
#WorldLayout_ABORT = 0 : i64
#IDLE = 0 : i64             // states of a rank
#RUNNING = 1 : i64
#RETURNED = 2 : i64
#StatusRow_STARTED = 0 : i64
#StatusRow_ENDED = 1 : i64
#StatusRow_STATE = 2 : i64
#StatusRow_BEFORE = 4 : i64
#StatusRow_CALLS = 5 : i64

llvm.func @sched_yield() -> i32
llvm.func @load_i64(!llvm.ptr, i64) -> i64
llvm.func @load_ptr(!llvm.ptr, i64) -> !llvm.ptr
llvm.func @is_ok(i32) -> i1
llvm.func @post_and_wake(!llvm.ptr, i64, !llvm.ptr)
llvm.func @sleep_on(!llvm.ptr, i64, !llvm.ptr)

// How long @mw_finish sleeps before it comes back to its caller.
llvm.mlir.global private constant @tick(dense<[0, 50000000]> : tensor<2xi64>) : !llvm.array<2 x i64>  // s, ns

// A field of a rank's part of the block.
llvm.func @rank_field(%block: !llvm.ptr, %rank: i64, %field: i64) -> !llvm.ptr attributes {always_inline} {
  %ranks = arith.constant #ServeBlock_RANKS
  %bytes = arith.constant #ServeBlock_RANK_BYTES
  %behind = arith.muli %rank, %bytes : i64
  %line = arith.addi %behind, %ranks : i64
  %offset = arith.addi %line, %field : i64
  %at = llvm.getelementptr %block[%offset] : (!llvm.ptr, i64) -> !llvm.ptr, i8
  llvm.return %at : !llvm.ptr
}

// The row of the status board in a rank's table.
llvm.func @status_row(%context: !llvm.ptr) -> !llvm.ptr attributes {always_inline} {
  %slot = arith.constant #Slots_STATUS
  %at = llvm.getelementptr %context[%slot] : (!llvm.ptr, i64) -> !llvm.ptr, i64
  %row = llvm.load %at : !llvm.ptr -> !llvm.ptr
  llvm.return %row : !llvm.ptr
}

// A word of the row, which this rank alone writes.
llvm.func @status_word(%row: !llvm.ptr, %index: i64) -> i64 attributes {always_inline} {
  %at = llvm.getelementptr %row[%index] : (!llvm.ptr, i64) -> !llvm.ptr, i64
  %word = llvm.load %at : !llvm.ptr -> i64
  llvm.return %word : i64
}

// Set a word of the row, which other threads read.
llvm.func @set_status(%row: !llvm.ptr, %index: i64, %value: i64) attributes {always_inline} {
  %at = llvm.getelementptr %row[%index] : (!llvm.ptr, i64) -> !llvm.ptr, i64
  llvm.store volatile %value, %at : i64, !llvm.ptr
  llvm.return
}

// Run a rank's step: its row of the status board, its result, and the abort flag where it fails.
llvm.func @run_rank(%block: !llvm.ptr, %rank: i64, %context: !llvm.ptr) {
  %c0 = arith.constant 0 : i64
  %c1 = arith.constant 1 : i64
  %started = arith.constant #StatusRow_STARTED
  %ended = arith.constant #StatusRow_ENDED
  %state = arith.constant #StatusRow_STATE
  %before = arith.constant #StatusRow_BEFORE
  %calls = arith.constant #StatusRow_CALLS
  %running = arith.constant #RUNNING
  %returned = arith.constant #RETURNED
  %step_field = arith.constant #ServeBlock_STEP
  %result_field = arith.constant #ServeBlock_RESULT
  %world_field = arith.constant #ServeBlock_WORLD
  %abort_field = arith.constant #WorldLayout_ABORT
  %row = llvm.call @status_row(%context) : (!llvm.ptr) -> !llvm.ptr
  %count = llvm.call @status_word(%row, %started) : (!llvm.ptr, i64) -> i64
  llvm.call @set_status(%row, %before, %count) : (!llvm.ptr, i64, i64) -> ()
  llvm.call @set_status(%row, %ended, %count) : (!llvm.ptr, i64, i64) -> ()
  %last = llvm.call @status_word(%row, %calls) : (!llvm.ptr, i64) -> i64
  %number = arith.addi %last, %c1 : i64
  llvm.call @set_status(%row, %calls, %number) : (!llvm.ptr, i64, i64) -> ()
  llvm.call @set_status(%row, %state, %running) : (!llvm.ptr, i64, i64) -> ()
  %step = llvm.call @load_ptr(%block, %step_field) : (!llvm.ptr, i64) -> !llvm.ptr
  %code = llvm.call %step(%context) : !llvm.ptr, (!llvm.ptr) -> i32
  %wide = arith.extui %code : i32 to i64
  %result_at = llvm.call @rank_field(%block, %rank, %result_field) : (!llvm.ptr, i64, i64) -> !llvm.ptr
  llvm.store %wide, %result_at : i64, !llvm.ptr
  %fine = llvm.call @is_ok(%code) : (i32) -> i1
  scf.if %fine {
  } else {
    %world = llvm.call @load_ptr(%block, %world_field) : (!llvm.ptr, i64) -> !llvm.ptr
    %flag = llvm.getelementptr %world[%abort_field] : (!llvm.ptr, i64) -> !llvm.ptr, i8
    llvm.store %c1, %flag atomic release {alignment = 8 : i64} : i64, !llvm.ptr
  }
  llvm.call @set_status(%row, %state, %returned) : (!llvm.ptr, i64, i64) -> ()
  llvm.return
}

// Wait until a word is no longer `seen`: look again soon, after a while let others have the processor between two
// looks, then sleep, once, until woken or for as long as `timeout` says. Returns the word, which may still be `seen`.
llvm.func @wait_for_change(%block: !llvm.ptr, %word: !llvm.ptr, %seen: i64, %sleeps: !llvm.ptr, %timeout: !llvm.ptr)
    -> i64 attributes {no_inline} {
  %c0 = arith.constant 0 : i64
  %c1 = arith.constant 1 : i64
  %spins_field = arith.constant #ServeBlock_SPINS
  %yields_field = arith.constant #ServeBlock_YIELDS
  %spins = llvm.call @load_i64(%block, %spins_field) : (!llvm.ptr, i64) -> i64
  %yields = llvm.call @load_i64(%block, %yields_field) : (!llvm.ptr, i64) -> i64
  %most = arith.addi %spins, %yields : i64
  cf.br ^look(%c0 : i64)
^look(%n: i64):
  %number = llvm.load %word atomic acquire {alignment = 8 : i64} : !llvm.ptr -> i64
  %same = arith.cmpi eq, %number, %seen : i64
  cf.cond_br %same, ^again, ^end(%number : i64)
^again:
  %next = arith.addi %n, %c1 : i64
  %is_soon = arith.cmpi slt, %n, %spins : i64
  cf.cond_br %is_soon, ^pause, ^later
^pause:
  llvm.call_intrinsic "llvm.x86.sse2.pause"() : () -> ()
  cf.br ^look(%next : i64)
^later:
  %is_awake = arith.cmpi slt, %n, %most : i64
  cf.cond_br %is_awake, ^yield, ^sleep
^yield:
  %ignored = llvm.call @sched_yield() : () -> i32
  cf.br ^look(%next : i64)
^sleep:
  %told = llvm.atomicrmw xchg %sleeps, %c1 seq_cst : !llvm.ptr, i64
  %now = llvm.load %word atomic seq_cst {alignment = 8 : i64} : !llvm.ptr -> i64
  %still = arith.cmpi eq, %now, %seen : i64
  scf.if %still {
    llvm.call @sleep_on(%word, %seen, %timeout) : (!llvm.ptr, i64, !llvm.ptr) -> ()
  }
  llvm.store %c0, %sleeps atomic release {alignment = 8 : i64} : i64, !llvm.ptr
  %last = llvm.load %word atomic acquire {alignment = 8 : i64} : !llvm.ptr -> i64
  cf.br ^end(%last : i64)
^end(%result: i64):
  llvm.return %result : i64
}

// Say that a rank has ended call `number`.
llvm.func @post_done(%block: !llvm.ptr, %rank: i64, %number: i64) attributes {always_inline} {
  %done_field = arith.constant #ServeBlock_DONE
  %sleeps_field = arith.constant #ServeBlock_CALLER_SLEEPS
  %done = llvm.call @rank_field(%block, %rank, %done_field) : (!llvm.ptr, i64, i64) -> !llvm.ptr
  %sleeps = llvm.call @rank_field(%block, %rank, %sleeps_field) : (!llvm.ptr, i64, i64) -> !llvm.ptr
  llvm.call @post_and_wake(%done, %number, %sleeps) : (!llvm.ptr, i64, !llvm.ptr) -> ()
  llvm.return
}

llvm.func @mw_serve(%block: !llvm.ptr, %rank: i64) {
  %null = llvm.mlir.zero : !llvm.ptr
  %go_field = arith.constant #ServeBlock_GO
  %sleeps_field = arith.constant #ServeBlock_SERVER_SLEEPS
  %context_field = arith.constant #ServeBlock_CONTEXT
  %done_field = arith.constant #ServeBlock_DONE
  %go = llvm.call @rank_field(%block, %rank, %go_field) : (!llvm.ptr, i64, i64) -> !llvm.ptr
  %sleeps = llvm.call @rank_field(%block, %rank, %sleeps_field) : (!llvm.ptr, i64, i64) -> !llvm.ptr
  %context_at = llvm.call @rank_field(%block, %rank, %context_field) : (!llvm.ptr, i64, i64) -> !llvm.ptr
  %done = llvm.call @rank_field(%block, %rank, %done_field) : (!llvm.ptr, i64, i64) -> !llvm.ptr
  %before = llvm.load %done : !llvm.ptr -> i64
  cf.br ^look(%before : i64)
^look(%seen: i64):
  %asked = llvm.call @wait_for_change(%block, %go, %seen, %sleeps, %null)
    : (!llvm.ptr, !llvm.ptr, i64, !llvm.ptr, !llvm.ptr) -> i64
  %is_new = arith.cmpi ne, %asked, %seen : i64
  cf.cond_br %is_new, ^run, ^look(%seen : i64)
^run:
  %context = llvm.load %context_at : !llvm.ptr -> !llvm.ptr
  %is_last = llvm.icmp "eq" %context, %null : !llvm.ptr
  cf.cond_br %is_last, ^leave, ^call
^call:
  llvm.call @run_rank(%block, %rank, %context) : (!llvm.ptr, i64, !llvm.ptr) -> ()
  llvm.call @post_done(%block, %rank, %asked) : (!llvm.ptr, i64, i64) -> ()
  cf.br ^look(%asked : i64)
^leave:
  llvm.call @post_done(%block, %rank, %asked) : (!llvm.ptr, i64, i64) -> ()
  llvm.return
}

// Give a rank its next table; a null pointer lets it leave.
llvm.func @start_rank(%block: !llvm.ptr, %rank: i64, %number: i64, %context: !llvm.ptr) {
  %go_field = arith.constant #ServeBlock_GO
  %sleeps_field = arith.constant #ServeBlock_SERVER_SLEEPS
  %context_field = arith.constant #ServeBlock_CONTEXT
  %go = llvm.call @rank_field(%block, %rank, %go_field) : (!llvm.ptr, i64, i64) -> !llvm.ptr
  %sleeps = llvm.call @rank_field(%block, %rank, %sleeps_field) : (!llvm.ptr, i64, i64) -> !llvm.ptr
  %context_at = llvm.call @rank_field(%block, %rank, %context_field) : (!llvm.ptr, i64, i64) -> !llvm.ptr
  llvm.store %context, %context_at : !llvm.ptr, !llvm.ptr
  llvm.call @post_and_wake(%go, %number, %sleeps) : (!llvm.ptr, i64, !llvm.ptr) -> ()
  llvm.return
}

// The number of the next call.
llvm.func @next_number(%block: !llvm.ptr) -> i64 {
  %c1 = arith.constant 1 : i64
  %field = arith.constant #ServeBlock_NUMBER
  %at = llvm.getelementptr %block[%field] : (!llvm.ptr, i64) -> !llvm.ptr, i8
  %number = llvm.load %at : !llvm.ptr -> i64
  %new = arith.addi %number, %c1 : i64
  llvm.store %new, %at : i64, !llvm.ptr
  llvm.return %new : i64
}

llvm.func @mw_call(%block: !llvm.ptr, %contexts: !llvm.ptr) -> i32 {
  %c0 = arith.constant 0 : i64
  %c1 = arith.constant 1 : i64
  %state = arith.constant #StatusRow_STATE
  %idle = arith.constant #IDLE
  %nranks_field = arith.constant #ServeBlock_NRANKS
  %nranks = llvm.call @load_i64(%block, %nranks_field) : (!llvm.ptr, i64) -> i64
  %number = llvm.call @next_number(%block) : (!llvm.ptr) -> i64
  scf.for %rank = %c1 to %nranks step %c1 : i64 {
    %entry = llvm.getelementptr %contexts[%rank] : (!llvm.ptr, i64) -> !llvm.ptr, !llvm.ptr
    %context = llvm.load %entry : !llvm.ptr -> !llvm.ptr
    %row = llvm.call @status_row(%context) : (!llvm.ptr) -> !llvm.ptr
    llvm.call @set_status(%row, %state, %idle) : (!llvm.ptr, i64, i64) -> ()
    llvm.call @start_rank(%block, %rank, %number, %context) : (!llvm.ptr, i64, i64, !llvm.ptr) -> ()
  }
  %own = llvm.load %contexts : !llvm.ptr -> !llvm.ptr
  llvm.call @run_rank(%block, %c0, %own) : (!llvm.ptr, i64, !llvm.ptr) -> ()
  %result = llvm.call @mw_finish(%block) : (!llvm.ptr) -> i32
  llvm.return %result : i32
}

llvm.func @mw_stop(%block: !llvm.ptr) {
  %c1 = arith.constant 1 : i64
  %null = llvm.mlir.zero : !llvm.ptr
  %nranks_field = arith.constant #ServeBlock_NRANKS
  %nranks = llvm.call @load_i64(%block, %nranks_field) : (!llvm.ptr, i64) -> i64
  %number = llvm.call @next_number(%block) : (!llvm.ptr) -> i64
  scf.for %rank = %c1 to %nranks step %c1 : i64 {
    llvm.call @start_rank(%block, %rank, %number, %null) : (!llvm.ptr, i64, i64, !llvm.ptr) -> ()
  }
  llvm.return
}

// Whether a rank has ended call `number`, after one wait if need be.
llvm.func @has_ended(%block: !llvm.ptr, %rank: i64, %number: i64) -> i1 {
  %tick = llvm.mlir.addressof @tick : !llvm.ptr
  %yes = arith.constant true
  %done_field = arith.constant #ServeBlock_DONE
  %sleeps_field = arith.constant #ServeBlock_CALLER_SLEEPS
  %done = llvm.call @rank_field(%block, %rank, %done_field) : (!llvm.ptr, i64, i64) -> !llvm.ptr
  %sleeps = llvm.call @rank_field(%block, %rank, %sleeps_field) : (!llvm.ptr, i64, i64) -> !llvm.ptr
  %ended = llvm.load %done atomic acquire {alignment = 8 : i64} : !llvm.ptr -> i64
  %is_there = arith.cmpi eq, %ended, %number : i64
  %result = scf.if %is_there -> (i1) {
    scf.yield %yes : i1
  } else {
    %late = llvm.call @wait_for_change(%block, %done, %ended, %sleeps, %tick)
      : (!llvm.ptr, !llvm.ptr, i64, !llvm.ptr, !llvm.ptr) -> i64
    %now = arith.cmpi eq, %late, %number : i64
    scf.yield %now : i1
  }
  llvm.return %result : i1
}

// 0: all ranks have ended the last call; PENDING: one has not, so far.
llvm.func @mw_finish(%block: !llvm.ptr) -> i32 {
  %c1 = arith.constant 1 : i64
  %ok = arith.constant 0 : i32
  %pending = arith.constant #ServeBlock_PENDING
  %nranks_field = arith.constant #ServeBlock_NRANKS
  %number_field = arith.constant #ServeBlock_NUMBER
  %nranks = llvm.call @load_i64(%block, %nranks_field) : (!llvm.ptr, i64) -> i64
  %number = llvm.call @load_i64(%block, %number_field) : (!llvm.ptr, i64) -> i64
  cf.br ^rank(%c1 : i64)
^rank(%rank: i64):
  %more = arith.cmpi slt, %rank, %nranks : i64
  cf.cond_br %more, ^look, ^end(%ok : i32)
^look:
  %ended = llvm.call @has_ended(%block, %rank, %number) : (!llvm.ptr, i64, i64) -> i1
  %next = arith.addi %rank, %c1 : i64
  cf.cond_br %ended, ^rank(%next : i64), ^end(%pending : i32)
^end(%code: i32):
  llvm.return %code : i32
}
