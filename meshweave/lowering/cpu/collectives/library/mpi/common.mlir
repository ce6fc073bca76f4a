// What the calls of the MPI library share. Handles and special addresses are integers of 64 bits in the table at the
// private slot (abi.MpiTable), so one object serves MPICH, whose handles are ints (the upper half is ignored), and Open
// MPI, whose handles are pointers. MPI counts have 32 bits: what is larger goes in parts of #piece.
//
// RUN: meshweave-opt %s -p convert-scf-to-cf,convert-arith-to-llvm,convert-cf-to-llvm | filecheck %s
// CHECK-LABEL: llvm.func @status_of
// CHECK: llvm.call @MPI_Error_class
// CHECK-LABEL: llvm.func @send_and_receive
// CHECK: llvm.call @MPI_Sendrecv

#Slots_PRIVATE = 3 : i64
#MpiTable_STATUS = 0 : i64
#MpiTable_BYTE = 2 : i64
#GroupRecord_COMM = 8 : i64
#AsyncArea_ACTIVE = 8 : i64
#AsyncArea_REQUESTS = 32 : i64
#piece = 1073741824 : i64  // bytes of a part
#tag = 77 : i32

llvm.func @word(!llvm.ptr, i64) -> i64
llvm.func @load_i64(!llvm.ptr, i64) -> i64
llvm.func @group_of(!llvm.ptr, i64) -> !llvm.ptr
llvm.func @is_ok(i32) -> i1
llvm.func @is_outside(i32) -> i1
llvm.func @MPI_Error_class(i32, !llvm.ptr) -> i32
llvm.func @MPI_Wait(!llvm.ptr, !llvm.ptr) -> i32
llvm.func @MPI_Sendrecv(!llvm.ptr, i32, i64, i32, i32, !llvm.ptr, i32, i64, i32, i32, i64, !llvm.ptr) -> i32

// The class of an error, which fits 16 bits: 0 for none, at least 1 for a code that MPI returned.
llvm.func @status_of(%rc: i32) -> i32 {
  %ok = arith.constant 0 : i32
  %one = arith.constant 1 : i32
  %unknown = arith.constant 16 : i32
  %mask = arith.constant 32767 : i32
  %cell = llvm.alloca %one x i32 : (i32) -> !llvm.ptr
  %fine = llvm.call @is_ok(%rc) : (i32) -> i1
  %status = scf.if %fine -> (i32) {
    scf.yield %ok : i32
  } else {
    llvm.store %unknown, %cell : i32, !llvm.ptr
    %ignored = llvm.call @MPI_Error_class(%rc, %cell) : (i32, !llvm.ptr) -> i32
    %class = llvm.load %cell : !llvm.ptr -> i32
    %low = arith.andi %class, %mask : i32
    %none = arith.cmpi eq, %low, %ok : i32
    %code = arith.select %none, %one, %low : i32
    scf.yield %code : i32
  }
  llvm.return %status : i32
}

// A handle of MPI's: word `index` of the engine's table.
llvm.func @handle(%ctx: !llvm.ptr, %index: i64) -> i64 attributes {always_inline} {
  %slot = arith.constant #Slots_PRIVATE
  %table = llvm.call @word(%ctx, %slot) : (!llvm.ptr, i64) -> i64
  %at = llvm.inttoptr %table : i64 to !llvm.ptr
  %value = llvm.call @word(%at, %index) : (!llvm.ptr, i64) -> i64
  llvm.return %value : i64
}

// The datatype of bytes.
llvm.func @byte_type(%ctx: !llvm.ptr) -> i64 attributes {always_inline} {
  %index = arith.constant #MpiTable_BYTE
  %value = llvm.call @handle(%ctx, %index) : (!llvm.ptr, i64) -> i64
  llvm.return %value : i64
}

// The address for statuses that are ignored.
llvm.func @ignored_status(%ctx: !llvm.ptr) -> !llvm.ptr attributes {always_inline} {
  %index = arith.constant #MpiTable_STATUS
  %value = llvm.call @handle(%ctx, %index) : (!llvm.ptr, i64) -> i64
  %at = llvm.inttoptr %value : i64 to !llvm.ptr
  llvm.return %at : !llvm.ptr
}

// The communicator of group `number`.
llvm.func @communicator(%ctx: !llvm.ptr, %number: i64) -> i64 attributes {always_inline} {
  %field = arith.constant #GroupRecord_COMM
  %group = llvm.call @group_of(%ctx, %number) : (!llvm.ptr, i64) -> !llvm.ptr
  %comm = llvm.call @load_i64(%group, %field) : (!llvm.ptr, i64) -> i64
  llvm.return %comm : i64
}

// The member `distance` after this one, `me` of `size`.
llvm.func @member_after(%me: i64, %distance: i64, %size: i64) -> i64 attributes {always_inline} {
  %sum = arith.addi %me, %distance : i64
  %member = arith.remui %sum, %size : i64
  llvm.return %member : i64
}

// The member `distance` before this one.
llvm.func @member_before(%me: i64, %distance: i64, %size: i64) -> i64 attributes {always_inline} {
  %up = arith.addi %me, %size : i64
  %sum = arith.subi %up, %distance : i64
  %member = arith.remui %sum, %size : i64
  llvm.return %member : i64
}

// Send bytes to one member and receive as many from another, in parts. Returns MPI's code.
llvm.func @send_and_receive(%ctx: !llvm.ptr, %number: i64, %src: !llvm.ptr, %dst: !llvm.ptr, %nbytes: i64,
    %source: i64, %target: i64) -> i32 {
  %c0 = arith.constant 0 : i64
  %ok = arith.constant 0 : i32
  %piece = arith.constant #piece
  %tag = arith.constant #tag
  %comm = llvm.call @communicator(%ctx, %number) : (!llvm.ptr, i64) -> i64
  %byte = llvm.call @byte_type(%ctx) : (!llvm.ptr) -> i64
  %status = llvm.call @ignored_status(%ctx) : (!llvm.ptr) -> !llvm.ptr
  %source32 = arith.trunci %source : i64 to i32
  %target32 = arith.trunci %target : i64 to i32
  %rc = scf.for %at = %c0 to %nbytes step %piece iter_args(%sofar = %ok) -> (i32) : i64 {
    %go = llvm.call @is_ok(%sofar) : (i32) -> i1
    %next = scf.if %go -> (i32) {
      %left = arith.subi %nbytes, %at : i64
      %n = arith.minsi %left, %piece : i64
      %n32 = arith.trunci %n : i64 to i32
      %from = llvm.getelementptr %src[%at] : (!llvm.ptr, i64) -> !llvm.ptr, i8
      %to = llvm.getelementptr %dst[%at] : (!llvm.ptr, i64) -> !llvm.ptr, i8
      %r = llvm.call @MPI_Sendrecv(%from, %n32, %byte, %target32, %tag, %to, %n32, %byte, %source32, %tag, %comm,
        %status)
        : (!llvm.ptr, i32, i64, i32, i32, !llvm.ptr, i32, i64, i32, i32, i64, !llvm.ptr) -> i32
      scf.yield %r : i32
    } else {
      scf.yield %sofar : i32
    }
    scf.yield %next : i32
  }
  llvm.return %rc : i32
}

// Where an area keeps request number `k` of those that a start leaves open.
llvm.func @request(%area: !llvm.ptr, %k: i64) -> !llvm.ptr attributes {always_inline} {
  %requests = arith.constant #AsyncArea_REQUESTS
  %first = llvm.getelementptr %area[%requests] : (!llvm.ptr, i64) -> !llvm.ptr, i8
  %at = llvm.getelementptr %first[%k] : (!llvm.ptr, i64) -> !llvm.ptr, i64
  llvm.return %at : !llvm.ptr
}

// Say how many requests a start leaves open.
llvm.func @set_open(%area: !llvm.ptr, %open: i64) attributes {always_inline} {
  %active = arith.constant #AsyncArea_ACTIVE
  %at = llvm.getelementptr %area[%active] : (!llvm.ptr, i64) -> !llvm.ptr, i8
  llvm.store %open, %at : i64, !llvm.ptr
  llvm.return
}

// Wait for the requests that a start has left open, where `tried`, what the window's wait returned, says OUTSIDE.
// Returns the code of the wait.
llvm.func @wait_for_requests(%ctx: !llvm.ptr, %area: !llvm.ptr, %tried: i32) -> i32 {
  %c0 = arith.constant 0 : i64
  %c1 = arith.constant 1 : i64
  %ok = arith.constant 0 : i32
  %active = arith.constant #AsyncArea_ACTIVE
  %outside = llvm.call @is_outside(%tried) : (i32) -> i1
  %code = scf.if %outside -> (i32) {
    %status_at = llvm.call @ignored_status(%ctx) : (!llvm.ptr) -> !llvm.ptr
    %open = llvm.call @load_i64(%area, %active) : (!llvm.ptr, i64) -> i64
    %rc = scf.for %k = %c0 to %open step %c1 iter_args(%sofar = %ok) -> (i32) : i64 {
      %at = llvm.call @request(%area, %k) : (!llvm.ptr, i64) -> !llvm.ptr
      %r = llvm.call @MPI_Wait(%at, %status_at) : (!llvm.ptr, !llvm.ptr) -> i32
      %go = llvm.call @is_ok(%sofar) : (i32) -> i1
      %next = arith.select %go, %r, %sofar : i32
      scf.yield %next : i32
    }
    %status = llvm.call @status_of(%rc) : (i32) -> i32
    scf.yield %status : i32
  } else {
    scf.yield %tried : i32
  }
  llvm.return %code : i32
}
