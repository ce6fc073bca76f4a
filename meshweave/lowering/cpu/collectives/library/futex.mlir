// Sleep on a word of 64 bits, and wake who sleeps. Both sides agree by one order of all: a sleeper says so before its
// last look at the word, who changes the word looks for sleepers after; so no one sleeps on.
//
// RUN: meshweave-opt %s -p convert-scf-to-cf,convert-arith-to-llvm,convert-cf-to-llvm | filecheck %s
// CHECK-LABEL: llvm.func @post_and_wake
// CHECK: llvm.atomicrmw xchg %{{.*}} seq_cst
// CHECK: llvm.load %{{.*}} atomic seq_cst
// CHECK: llvm.call @wake

#FUTEX = 202 : i64      // the system call on x86-64
#FUTEX_WAIT = 0 : i64   // 128 is added where no other process sleeps on the word
#FUTEX_WAKE = 1 : i64
#WAKE_MOST = 2147483647 : i64

llvm.func @syscall(i64, !llvm.ptr, i64, i64, !llvm.ptr, !llvm.ptr, i64) -> i64

// Sleep while the lower half of `word` is that of `seen`, until woken or, where `timeout` is not null, for so long.
llvm.func @sleep_on(%word: !llvm.ptr, %seen: i64, %timeout: !llvm.ptr) attributes {no_inline} {
  %c0 = arith.constant 0 : i64
  %null = llvm.mlir.zero : !llvm.ptr
  %futex = arith.constant #FUTEX
  %wait = arith.constant #FUTEX_WAIT
  %half = arith.constant 4294967295 : i64
  %low = arith.andi %seen, %half : i64
  %ignored = llvm.call @syscall(%futex, %word, %wait, %low, %timeout, %null, %c0)
    : (i64, !llvm.ptr, i64, i64, !llvm.ptr, !llvm.ptr, i64) -> i64
  llvm.return
}

// Wake those who sleep on a word, #WAKE_MOST at most.
llvm.func @wake(%word: !llvm.ptr) {
  %most = arith.constant #WAKE_MOST
  llvm.call @wake_some(%word, %most) : (!llvm.ptr, i64) -> ()
  llvm.return
}

// Wake some of those who sleep on a word.
llvm.func @wake_some(%word: !llvm.ptr, %most: i64) attributes {no_inline} {
  %c0 = arith.constant 0 : i64
  %null = llvm.mlir.zero : !llvm.ptr
  %futex = arith.constant #FUTEX
  %wake = arith.constant #FUTEX_WAKE
  %ignored = llvm.call @syscall(%futex, %word, %wake, %most, %null, %null, %c0)
    : (i64, !llvm.ptr, i64, i64, !llvm.ptr, !llvm.ptr, i64) -> i64
  llvm.return
}

// Publish a number that somebody may sleep on. sleepers: a word that is not 0 while somebody may.
llvm.func @post_and_wake(%word: !llvm.ptr, %number: i64, %sleepers: !llvm.ptr) {
  %c0 = arith.constant 0 : i64
  %ignored = llvm.atomicrmw xchg %word, %number seq_cst : !llvm.ptr, i64
  %sleeping = llvm.load %sleepers atomic seq_cst {alignment = 8 : i64} : !llvm.ptr -> i64
  %asleep = arith.cmpi ne, %sleeping, %c0 : i64
  scf.if %asleep {
    llvm.call @wake(%word) : (!llvm.ptr) -> ()
  }
  llvm.return
}
