// exchange between processes: through the shared window of a host, else by messages of MPI. They are packed, moved in
// one call or in parts, and unpacked; what lies back to back for every member is sent or received where it is.
//
// RUN: meshweave-opt %s -p convert-scf-to-cf,convert-arith-to-llvm,convert-cf-to-llvm | filecheck %s
// CHECK-LABEL: llvm.func @library_exchange(
// CHECK: llvm.call @pack_messages
// CHECK: llvm.call @exchange_at_once
// CHECK: llvm.call @exchange_one_by_one
// CHECK: llvm.call @unpack_messages
// CHECK-LABEL: llvm.func @mw_exchange(
// CHECK: llvm.call @window_exchange(

#SectionWords_SENDS = 2 : i64
#SectionWords_SENT = 3 : i64
#SectionWords_MESSAGES = 4 : i64
#SectionWords_PACKS = 5 : i64
#SectionWords_UNPACKS = 6 : i64
#SectionWords_RECEIVED_AT = 7 : i64
#SectionWords_LARGEST = 8 : i64
#SectionWords_END = 9 : i64
#PieceWords_NBYTES = 4 : i64
#PACKED_TARGET = 1 : i64
#PACKED_SOURCE = 2 : i64
#MAIL_WORDS = 4 : i64      // of each member: bytes to send, where they begin, bytes to receive, where they begin
#limit = 2147483647 : i64  // up to which MPI's counts and places go
#piece = 1073741824 : i64  // bytes of each message, where there are more
#tag = 78 : i32

llvm.func @word(!llvm.ptr, i64) -> i64
llvm.func @group_of(!llvm.ptr, i64) -> !llvm.ptr
llvm.func @member_of(!llvm.ptr, i64) -> i64
llvm.func @size_of(!llvm.ptr) -> i64
llvm.func @is_ok(i32) -> i1
llvm.func @pieces_of(!llvm.ptr) -> i64
llvm.func @first_piece(!llvm.ptr) -> !llvm.ptr
llvm.func @next_piece(!llvm.ptr) -> !llvm.ptr
llvm.func @piece_member(!llvm.ptr) -> i64
llvm.func @piece_source(!llvm.ptr, !llvm.ptr) -> !llvm.ptr
llvm.func @piece_target(!llvm.ptr, !llvm.ptr) -> !llvm.ptr
llvm.func @copy_piece(!llvm.ptr, !llvm.ptr, !llvm.ptr, i64)
llvm.func @communicator(!llvm.ptr, i64) -> i64
llvm.func @byte_type(!llvm.ptr) -> i64
llvm.func @ignored_status(!llvm.ptr) -> !llvm.ptr
llvm.func @member_after(i64, i64, i64) -> i64
llvm.func @member_before(i64, i64, i64) -> i64
llvm.func @window_exchange(!llvm.ptr, i64, !llvm.ptr, !llvm.ptr, i64, !llvm.ptr, !llvm.ptr) -> i32
llvm.func @window_exchange_start(!llvm.ptr, i64, !llvm.ptr, !llvm.ptr, i64, !llvm.ptr, !llvm.ptr, !llvm.ptr, i64) -> i32
llvm.func @window_exchange_wait(!llvm.ptr, i64, !llvm.ptr, !llvm.ptr, i64, !llvm.ptr, !llvm.ptr, !llvm.ptr, i64) -> i32
llvm.func @is_outside(i32) -> i1
llvm.func @status_of(i32) -> i32
llvm.func @set_open(!llvm.ptr, i64)
llvm.func @wait_for_requests(!llvm.ptr, !llvm.ptr, i32) -> i32
llvm.func @MPI_Alltoallv(!llvm.ptr, !llvm.ptr, !llvm.ptr, i64, !llvm.ptr, !llvm.ptr, !llvm.ptr, i64, i64) -> i32
llvm.func @MPI_Sendrecv(!llvm.ptr, i32, i64, i32, i32, !llvm.ptr, i32, i64, i32, i32, i64, !llvm.ptr) -> i32

// Pack the pieces to send, receiver by receiver, one behind the other in `staging`.
llvm.func @pack_messages(%src: !llvm.ptr, %section: !llvm.ptr, %staging: !llvm.ptr) {
  %c0 = arith.constant 0 : i64
  %c1 = arith.constant 1 : i64
  %packed = arith.constant #PACKED_TARGET
  %sends_word = arith.constant #SectionWords_SENDS
  %sent_word = arith.constant #SectionWords_SENT
  %nbytes_word = arith.constant #PieceWords_NBYTES
  %count = llvm.call @word(%section, %sends_word) : (!llvm.ptr, i64) -> i64
  %sent = llvm.call @word(%section, %sent_word) : (!llvm.ptr, i64) -> i64
  %first = llvm.getelementptr %section[%sent] : (!llvm.ptr, i64) -> !llvm.ptr, i64
  %last:2 = scf.for %k = %c0 to %count step %c1 iter_args(%piece = %first, %to = %staging)
      -> (!llvm.ptr, !llvm.ptr) : i64 {
    %from = llvm.call @piece_source(%piece, %src) : (!llvm.ptr, !llvm.ptr) -> !llvm.ptr
    llvm.call @copy_piece(%to, %from, %piece, %packed) : (!llvm.ptr, !llvm.ptr, !llvm.ptr, i64) -> ()
    %nbytes = llvm.call @word(%piece, %nbytes_word) : (!llvm.ptr, i64) -> i64
    %end = llvm.getelementptr %to[%nbytes] : (!llvm.ptr, i64) -> !llvm.ptr, i8
    %next = llvm.call @next_piece(%piece) : (!llvm.ptr) -> !llvm.ptr
    scf.yield %next, %end : !llvm.ptr, !llvm.ptr
  }
  llvm.return
}

// Copy the pieces that this rank keeps.
llvm.func @keep_pieces(%src: !llvm.ptr, %dst: !llvm.ptr, %section: !llvm.ptr, %me: i64) {
  %c0 = arith.constant 0 : i64
  %c1 = arith.constant 1 : i64
  %count = llvm.call @pieces_of(%section) : (!llvm.ptr) -> i64
  %first = llvm.call @first_piece(%section) : (!llvm.ptr) -> !llvm.ptr
  %last = scf.for %k = %c0 to %count step %c1 iter_args(%piece = %first) -> (!llvm.ptr) : i64 {
    %member = llvm.call @piece_member(%piece) : (!llvm.ptr) -> i64
    %is_mine = arith.cmpi eq, %member, %me : i64
    scf.if %is_mine {
      %from = llvm.call @piece_source(%piece, %src) : (!llvm.ptr, !llvm.ptr) -> !llvm.ptr
      %to = llvm.call @piece_target(%piece, %dst) : (!llvm.ptr, !llvm.ptr) -> !llvm.ptr
      llvm.call @copy_piece(%to, %from, %piece, %c0) : (!llvm.ptr, !llvm.ptr, !llvm.ptr, i64) -> ()
    }
    %next = llvm.call @next_piece(%piece) : (!llvm.ptr) -> !llvm.ptr
    scf.yield %next : !llvm.ptr
  }
  llvm.return
}

// Put what came, one piece behind the other from `inbox` on, where it belongs.
llvm.func @unpack_messages(%inbox: !llvm.ptr, %dst: !llvm.ptr, %section: !llvm.ptr, %me: i64) {
  %c0 = arith.constant 0 : i64
  %c1 = arith.constant 1 : i64
  %packed = arith.constant #PACKED_SOURCE
  %nbytes_word = arith.constant #PieceWords_NBYTES
  %count = llvm.call @pieces_of(%section) : (!llvm.ptr) -> i64
  %first = llvm.call @first_piece(%section) : (!llvm.ptr) -> !llvm.ptr
  %last:2 = scf.for %k = %c0 to %count step %c1 iter_args(%piece = %first, %message = %inbox)
      -> (!llvm.ptr, !llvm.ptr) : i64 {
    %member = llvm.call @piece_member(%piece) : (!llvm.ptr) -> i64
    %is_foreign = arith.cmpi ne, %member, %me : i64
    %behind = scf.if %is_foreign -> (!llvm.ptr) {
      %to = llvm.call @piece_target(%piece, %dst) : (!llvm.ptr, !llvm.ptr) -> !llvm.ptr
      llvm.call @copy_piece(%to, %message, %piece, %packed) : (!llvm.ptr, !llvm.ptr, !llvm.ptr, i64) -> ()
      %nbytes = llvm.call @word(%piece, %nbytes_word) : (!llvm.ptr, i64) -> i64
      %end = llvm.getelementptr %message[%nbytes] : (!llvm.ptr, i64) -> !llvm.ptr, i8
      scf.yield %end : !llvm.ptr
    } else {
      scf.yield %message : !llvm.ptr
    }
    %next = llvm.call @next_piece(%piece) : (!llvm.ptr) -> !llvm.ptr
    scf.yield %next, %behind : !llvm.ptr, !llvm.ptr
  }
  llvm.return
}

// Move all messages in one call of MPI, whose tables are made on the stack. mail: #MAIL_WORDS words of each member.
llvm.func @exchange_at_once(%ctx: !llvm.ptr, %number: i64, %out: !llvm.ptr, %in: !llvm.ptr, %mail: !llvm.ptr,
    %size: i64) -> i32 {
  %c0 = arith.constant 0 : i64
  %c1 = arith.constant 1 : i64
  %words = arith.constant #MAIL_WORDS
  %comm = llvm.call @communicator(%ctx, %number) : (!llvm.ptr, i64) -> i64
  %byte = llvm.call @byte_type(%ctx) : (!llvm.ptr) -> i64
  %cells = arith.muli %size, %words : i64
  %tables = llvm.alloca %cells x i32 : (i64) -> !llvm.ptr
  scf.for %j = %c0 to %size step %c1 : i64 {
    %row_at = arith.muli %j, %words : i64
    %row = llvm.getelementptr %mail[%row_at] : (!llvm.ptr, i64) -> !llvm.ptr, i64
    scf.for %k = %c0 to %words step %c1 : i64 {
      %wide = llvm.call @word(%row, %k) : (!llvm.ptr, i64) -> i64
      %n = arith.trunci %wide : i64 to i32
      %column = arith.muli %k, %size : i64
      %cell = arith.addi %column, %j : i64
      %at = llvm.getelementptr %tables[%cell] : (!llvm.ptr, i64) -> !llvm.ptr, i32
      llvm.store %n, %at : i32, !llvm.ptr
    }
  }
  %begins = llvm.getelementptr %tables[%size] : (!llvm.ptr, i64) -> !llvm.ptr, i32
  %received = llvm.getelementptr %begins[%size] : (!llvm.ptr, i64) -> !llvm.ptr, i32
  %received_begins = llvm.getelementptr %received[%size] : (!llvm.ptr, i64) -> !llvm.ptr, i32
  %rc = llvm.call @MPI_Alltoallv(%out, %tables, %begins, %byte, %in, %received, %received_begins, %byte, %comm)
    : (!llvm.ptr, !llvm.ptr, !llvm.ptr, i64, !llvm.ptr, !llvm.ptr, !llvm.ptr, i64, i64) -> i32
  llvm.return %rc : i32
}

// The bytes, as MPI counts them, of a message of `nbytes` that go in the part that begins at byte `at`.
llvm.func @part_of_message(%nbytes: i64, %at: i64) -> i32 {
  %c0 = arith.constant 0 : i64
  %piece = arith.constant #piece
  %rest = arith.subi %nbytes, %at : i64
  %some = arith.maxsi %rest, %c0 : i64
  %most = arith.minsi %some, %piece : i64
  %count = arith.trunci %most : i64 to i32
  llvm.return %count : i32
}

// Send a message to one member and receive one from another, in as many parts as the largest of all messages takes: so
// every part that is sent is received.
llvm.func @exchange_with(%ctx: !llvm.ptr, %number: i64, %out: !llvm.ptr, %in: !llvm.ptr, %mail: !llvm.ptr,
    %largest: i64, %receiver: i64, %sender: i64) -> i32 {
  %c0 = arith.constant 0 : i64
  %c1 = arith.constant 1 : i64
  %c2 = arith.constant 2 : i64
  %c3 = arith.constant 3 : i64
  %ok = arith.constant 0 : i32
  %words = arith.constant #MAIL_WORDS
  %piece = arith.constant #piece
  %tag = arith.constant #tag
  %comm = llvm.call @communicator(%ctx, %number) : (!llvm.ptr, i64) -> i64
  %byte = llvm.call @byte_type(%ctx) : (!llvm.ptr) -> i64
  %status = llvm.call @ignored_status(%ctx) : (!llvm.ptr) -> !llvm.ptr
  %out_row = arith.muli %receiver, %words : i64
  %in_row = arith.muli %sender, %words : i64
  %out_at = llvm.getelementptr %mail[%out_row] : (!llvm.ptr, i64) -> !llvm.ptr, i64
  %in_at = llvm.getelementptr %mail[%in_row] : (!llvm.ptr, i64) -> !llvm.ptr, i64
  %out_bytes = llvm.call @word(%out_at, %c0) : (!llvm.ptr, i64) -> i64
  %out_begin = llvm.call @word(%out_at, %c1) : (!llvm.ptr, i64) -> i64
  %in_bytes = llvm.call @word(%in_at, %c2) : (!llvm.ptr, i64) -> i64
  %in_begin = llvm.call @word(%in_at, %c3) : (!llvm.ptr, i64) -> i64
  %receiver32 = arith.trunci %receiver : i64 to i32
  %sender32 = arith.trunci %sender : i64 to i32
  %rc = scf.for %at = %c0 to %largest step %piece iter_args(%sofar = %ok) -> (i32) : i64 {
    %go = llvm.call @is_ok(%sofar) : (i32) -> i1
    %next = scf.if %go -> (i32) {
      %out_count = llvm.call @part_of_message(%out_bytes, %at) : (i64, i64) -> i32
      %in_count = llvm.call @part_of_message(%in_bytes, %at) : (i64, i64) -> i32
      %out_place = arith.addi %out_begin, %at : i64
      %in_place = arith.addi %in_begin, %at : i64
      %from = llvm.getelementptr %out[%out_place] : (!llvm.ptr, i64) -> !llvm.ptr, i8
      %to = llvm.getelementptr %in[%in_place] : (!llvm.ptr, i64) -> !llvm.ptr, i8
      %r = llvm.call @MPI_Sendrecv(%from, %out_count, %byte, %receiver32, %tag, %to, %in_count, %byte, %sender32, %tag,
        %comm, %status)
        : (!llvm.ptr, i32, i64, i32, i32, !llvm.ptr, i32, i64, i32, i32, i64, !llvm.ptr) -> i32
      scf.yield %r : i32
    } else {
      scf.yield %sofar : i32
    }
    scf.yield %next : i32
  }
  llvm.return %rc : i32
}

// Move the messages with one member after the other.
llvm.func @exchange_one_by_one(%ctx: !llvm.ptr, %number: i64, %out: !llvm.ptr, %in: !llvm.ptr, %mail: !llvm.ptr,
    %largest: i64, %me: i64, %size: i64) -> i32 {
  %c1 = arith.constant 1 : i64
  %ok = arith.constant 0 : i32
  %rc = scf.for %distance = %c1 to %size step %c1 iter_args(%sofar = %ok) -> (i32) : i64 {
    %go = llvm.call @is_ok(%sofar) : (i32) -> i1
    %next = scf.if %go -> (i32) {
      %receiver = llvm.call @member_after(%me, %distance, %size) : (i64, i64, i64) -> i64
      %sender = llvm.call @member_before(%me, %distance, %size) : (i64, i64, i64) -> i64
      %r = llvm.call @exchange_with(%ctx, %number, %out, %in, %mail, %largest, %receiver, %sender)
        : (!llvm.ptr, i64, !llvm.ptr, !llvm.ptr, !llvm.ptr, i64, i64, i64) -> i32
      scf.yield %r : i32
    } else {
      scf.yield %sofar : i32
    }
    scf.yield %next : i32
  }
  llvm.return %rc : i32
}

llvm.func @library_exchange(%ctx: !llvm.ptr, %number: i64, %src: !llvm.ptr, %dst: !llvm.ptr, %source_bytes: i64,
    %section: !llvm.ptr, %staging: !llvm.ptr) -> i32 {
  %c0 = arith.constant 0 : i64
  %limit = arith.constant #limit
  %packs_word = arith.constant #SectionWords_PACKS
  %unpacks_word = arith.constant #SectionWords_UNPACKS
  %messages_word = arith.constant #SectionWords_MESSAGES
  %received_at_word = arith.constant #SectionWords_RECEIVED_AT
  %largest_word = arith.constant #SectionWords_LARGEST
  %end_word = arith.constant #SectionWords_END
  %group = llvm.call @group_of(%ctx, %number) : (!llvm.ptr, i64) -> !llvm.ptr
  %me = llvm.call @member_of(%ctx, %number) : (!llvm.ptr, i64) -> i64
  %size = llvm.call @size_of(%group) : (!llvm.ptr) -> i64
  %packs = llvm.call @word(%section, %packs_word) : (!llvm.ptr, i64) -> i64
  %unpacks = llvm.call @word(%section, %unpacks_word) : (!llvm.ptr, i64) -> i64
  %messages = llvm.call @word(%section, %messages_word) : (!llvm.ptr, i64) -> i64
  %received_at = llvm.call @word(%section, %received_at_word) : (!llvm.ptr, i64) -> i64
  %largest = llvm.call @word(%section, %largest_word) : (!llvm.ptr, i64) -> i64
  %end = llvm.call @word(%section, %end_word) : (!llvm.ptr, i64) -> i64
  %must_pack = arith.cmpi ne, %packs, %c0 : i64
  %must_unpack = arith.cmpi ne, %unpacks, %c0 : i64
  %inbox = llvm.getelementptr %staging[%received_at] : (!llvm.ptr, i64) -> !llvm.ptr, i8
  %out = arith.select %must_pack, %staging, %src : !llvm.ptr
  %in = arith.select %must_unpack, %inbox, %dst : !llvm.ptr
  %mail = llvm.getelementptr %section[%messages] : (!llvm.ptr, i64) -> !llvm.ptr, i64
  scf.if %must_pack {
    llvm.call @pack_messages(%src, %section, %staging) : (!llvm.ptr, !llvm.ptr, !llvm.ptr) -> ()
  }
  llvm.call @keep_pieces(%src, %dst, %section, %me) : (!llvm.ptr, !llvm.ptr, !llvm.ptr, i64) -> ()
  %whole = arith.cmpi sle, %end, %limit : i64
  %rc = scf.if %whole -> (i32) {
    %r = llvm.call @exchange_at_once(%ctx, %number, %out, %in, %mail, %size)
      : (!llvm.ptr, i64, !llvm.ptr, !llvm.ptr, !llvm.ptr, i64) -> i32
    scf.yield %r : i32
  } else {
    %r = llvm.call @exchange_one_by_one(%ctx, %number, %out, %in, %mail, %largest, %me, %size)
      : (!llvm.ptr, i64, !llvm.ptr, !llvm.ptr, !llvm.ptr, i64, i64, i64) -> i32
    scf.yield %r : i32
  }
  scf.if %must_unpack {
    llvm.call @unpack_messages(%inbox, %dst, %section, %me) : (!llvm.ptr, !llvm.ptr, !llvm.ptr, i64) -> ()
  }
  %status = llvm.call @status_of(%rc) : (i32) -> i32
  llvm.return %status : i32
}

// An exchange has tables and packing around its messages: all of it is done when it is started.
llvm.func @library_exchange_start(%ctx: !llvm.ptr, %number: i64, %src: !llvm.ptr, %dst: !llvm.ptr,
    %source_bytes: i64, %section: !llvm.ptr, %staging: !llvm.ptr,
    %area: !llvm.ptr) -> i32 {
  %c0 = arith.constant 0 : i64
  %status = llvm.call @library_exchange(%ctx, %number, %src, %dst, %source_bytes, %section, %staging)
    : (!llvm.ptr, i64, !llvm.ptr, !llvm.ptr, i64, !llvm.ptr, !llvm.ptr) -> i32
  llvm.call @set_open(%area, %c0) : (!llvm.ptr, i64) -> ()
  llvm.return %status : i32
}

// Through the window, or by the library.
llvm.func @mw_exchange(%ctx: !llvm.ptr, %number: i64, %src: !llvm.ptr, %dst: !llvm.ptr, %source_bytes: i64,
    %section: !llvm.ptr, %staging: !llvm.ptr) -> i32 {
  %tried = llvm.call @window_exchange(%ctx, %number, %src, %dst, %source_bytes, %section, %staging)
    : (!llvm.ptr, i64, !llvm.ptr, !llvm.ptr, i64, !llvm.ptr, !llvm.ptr) -> i32
  %outside = llvm.call @is_outside(%tried) : (i32) -> i1
  %code = scf.if %outside -> (i32) {
    %called = llvm.call @library_exchange(%ctx, %number, %src, %dst, %source_bytes, %section, %staging)
      : (!llvm.ptr, i64, !llvm.ptr, !llvm.ptr, i64, !llvm.ptr, !llvm.ptr) -> i32
    scf.yield %called : i32
  } else {
    scf.yield %tried : i32
  }
  llvm.return %code : i32
}

llvm.func @mw_exchange_start(%ctx: !llvm.ptr, %number: i64, %src: !llvm.ptr, %dst: !llvm.ptr, %source_bytes: i64,
    %section: !llvm.ptr, %staging: !llvm.ptr,
    %area: !llvm.ptr, %area_bytes: i64) -> i32 {
  %tried = llvm.call @window_exchange_start(%ctx, %number, %src, %dst, %source_bytes, %section, %staging, %area,
    %area_bytes)
    : (!llvm.ptr, i64, !llvm.ptr, !llvm.ptr, i64, !llvm.ptr, !llvm.ptr, !llvm.ptr, i64) -> i32
  %outside = llvm.call @is_outside(%tried) : (i32) -> i1
  %code = scf.if %outside -> (i32) {
    %called = llvm.call @library_exchange_start(%ctx, %number, %src, %dst, %source_bytes, %section, %staging, %area)
      : (!llvm.ptr, i64, !llvm.ptr, !llvm.ptr, i64, !llvm.ptr, !llvm.ptr, !llvm.ptr) -> i32
    scf.yield %called : i32
  } else {
    scf.yield %tried : i32
  }
  llvm.return %code : i32
}

llvm.func @mw_exchange_wait(%ctx: !llvm.ptr, %number: i64, %src: !llvm.ptr, %dst: !llvm.ptr, %source_bytes: i64,
    %section: !llvm.ptr, %staging: !llvm.ptr,
    %area: !llvm.ptr, %area_bytes: i64) -> i32 {
  %tried = llvm.call @window_exchange_wait(%ctx, %number, %src, %dst, %source_bytes, %section, %staging, %area,
    %area_bytes)
    : (!llvm.ptr, i64, !llvm.ptr, !llvm.ptr, i64, !llvm.ptr, !llvm.ptr, !llvm.ptr, i64) -> i32
  %code = llvm.call @wait_for_requests(%ctx, %area, %tried) : (!llvm.ptr, !llvm.ptr, i32) -> i32
  llvm.return %code : i32
}
