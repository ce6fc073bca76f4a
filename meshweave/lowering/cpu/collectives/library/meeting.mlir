// Let the members of a group wait for each other. How a member is found is the engine's: local.mlir, window.mlir.
//
// RUN: meshweave-opt %s -p convert-scf-to-cf,convert-arith-to-llvm,convert-cf-to-llvm | filecheck %s
// CHECK-LABEL: llvm.func @wait_for_counter
// CHECK: llvm.load %{{.*}} atomic acquire {alignment = 8 : i64}
// CHECK: llvm.call_intrinsic "llvm.x86.sse2.pause"
// CHECK: llvm.call @rest
// CHECK-LABEL: llvm.func @meet
// CHECK: llvm.call @set_counter
// CHECK: llvm.call @wait_for_counter

#ABORTED = 32767 : i32

llvm.func @size_of(!llvm.ptr) -> i64
llvm.func @arrivals_of(!llvm.ptr, i64) -> !llvm.ptr
llvm.func @arena_of(!llvm.ptr, i64) -> !llvm.ptr
llvm.func @set_counter(!llvm.ptr, i64)
llvm.func @spins_of(!llvm.ptr) -> i64
llvm.func @must_leave(!llvm.ptr) -> i1
llvm.func @rest(!llvm.ptr, i64, !llvm.ptr, i64, i64)
llvm.func @reach_of(!llvm.ptr) -> i32
llvm.func @is_ok(i32) -> i1

// Look at a counter until it has come to `wanted`. Between two looks there is a pause, from `spins` looks on a rest.
// `looks` counts them over all members: who has waited long for one need not be quick about the next. Returns the looks
// so far, or -1 where the wait was left because a rank had failed; -1 given is -1 returned.
llvm.func @wait_for_counter(%group: !llvm.ptr, %me: i64, %counter: !llvm.ptr, %wanted: i64, %spins: i64,
    %looks: i64) -> i64 {
  %c0 = arith.constant 0 : i64
  %c1 = arith.constant 1 : i64
  %left = arith.constant -1 : i64
  %has_left = arith.cmpi slt, %looks, %c0 : i64
  cf.cond_br %has_left, ^end(%left : i64), ^look(%looks : i64)
^look(%n: i64):
  %count = llvm.load %counter atomic acquire {alignment = 8 : i64} : !llvm.ptr -> i64
  %has_come = arith.cmpi sge, %count, %wanted : i64
  cf.cond_br %has_come, ^end(%n : i64), ^check
^check:
  %failed = llvm.call @must_leave(%group) : (!llvm.ptr) -> i1
  cf.cond_br %failed, ^end(%left : i64), ^wait
^wait:
  %next = arith.addi %n, %c1 : i64
  %is_soon = arith.cmpi slt, %n, %spins : i64
  cf.cond_br %is_soon, ^pause, ^rest
^pause:
  llvm.call_intrinsic "llvm.x86.sse2.pause"() : () -> ()
  cf.br ^look(%next : i64)
^rest:
  llvm.call @rest(%group, %me, %counter, %count, %n) : (!llvm.ptr, i64, !llvm.ptr, i64, i64) -> ()
  cf.br ^look(%next : i64)
^end(%result: i64):
  llvm.return %result : i64
}

// The code of a wait that ended with `looks`.
llvm.func @code_of_wait(%looks: i64) -> i32 attributes {always_inline} {
  %c0 = arith.constant 0 : i64
  %ok = arith.constant 0 : i32
  %aborted = arith.constant #ABORTED
  %has_left = arith.cmpi slt, %looks, %c0 : i64
  %code = arith.select %has_left, %aborted, %ok : i32
  llvm.return %code : i32
}

// Arrive, and wait until every member has arrived as often: what each wrote before is then visible to all.
llvm.func @meet(%group: !llvm.ptr, %me: i64) -> i32 attributes {no_inline} {
  %c0 = arith.constant 0 : i64
  %c1 = arith.constant 1 : i64
  %mine = llvm.call @arrivals_of(%group, %me) : (!llvm.ptr, i64) -> !llvm.ptr
  %before = llvm.load %mine : !llvm.ptr -> i64
  %wanted = arith.addi %before, %c1 : i64
  llvm.call @set_counter(%mine, %wanted) : (!llvm.ptr, i64) -> ()
  %size = llvm.call @size_of(%group) : (!llvm.ptr) -> i64
  %spins = llvm.call @spins_of(%group) : (!llvm.ptr) -> i64
  %looks = scf.for %j = %c0 to %size step %c1 iter_args(%n = %c0) -> (i64) : i64 {
    %counter = llvm.call @arrivals_of(%group, %j) : (!llvm.ptr, i64) -> !llvm.ptr
    %more = llvm.call @wait_for_counter(%group, %me, %counter, %wanted, %spins, %n)
      : (!llvm.ptr, i64, !llvm.ptr, i64, i64, i64) -> i64
    scf.yield %more : i64
  }
  %code = llvm.call @code_of_wait(%looks) : (i64) -> i32
  llvm.return %code : i32
}

// Wait until the counters that lie `offset` bytes into every member's arena have come to `wanted`.
llvm.func @await(%group: !llvm.ptr, %me: i64, %offset: i64, %wanted: i64) -> i32 attributes {no_inline} {
  %c0 = arith.constant 0 : i64
  %c1 = arith.constant 1 : i64
  %reach = llvm.call @reach_of(%group) : (!llvm.ptr) -> i32
  %in_reach = llvm.call @is_ok(%reach) : (i32) -> i1
  %result = scf.if %in_reach -> (i32) {
    %size = llvm.call @size_of(%group) : (!llvm.ptr) -> i64
    %spins = llvm.call @spins_of(%group) : (!llvm.ptr) -> i64
    %looks = scf.for %j = %c0 to %size step %c1 iter_args(%n = %c0) -> (i64) : i64 {
      %arena = llvm.call @arena_of(%group, %j) : (!llvm.ptr, i64) -> !llvm.ptr
      %counter = llvm.getelementptr %arena[%offset] : (!llvm.ptr, i64) -> !llvm.ptr, i8
      %more = llvm.call @wait_for_counter(%group, %me, %counter, %wanted, %spins, %n)
        : (!llvm.ptr, i64, !llvm.ptr, i64, i64, i64) -> i64
      scf.yield %more : i64
    }
    %code = llvm.call @code_of_wait(%looks) : (i64) -> i32
    scf.yield %code : i32
  } else {
    scf.yield %reach : i32
  }
  llvm.return %result : i32
}
