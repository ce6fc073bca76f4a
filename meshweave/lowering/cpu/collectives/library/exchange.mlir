// exchange: the general all-to-all-v, by a table of pieces. relayout: the same within a rank, which rearranges what it
// holds itself. `section` is what this rank does (abi.SectionWords), `staging` is for messages.
//
// RUN: meshweave-opt %s -p convert-scf-to-cf,convert-arith-to-llvm,convert-cf-to-llvm | filecheck %s
// CHECK-LABEL: llvm.func @mw_relayout
// CHECK: llvm.call @copy_piece
// CHECK-LABEL: llvm.func @mw_exchange(
// CHECK: llvm.call @begin
// CHECK: llvm.call @exchange_from
// CHECK: llvm.call @end

#PUBLISHED = -1 : i64
#SectionWords_PIECES = 0 : i64
#SectionWords_BODY = 1 : i64
#PieceWords_MEMBER = 0 : i64
#PieceWords_SOURCE = 1 : i64
#PieceWords_TARGET = 2 : i64
#PieceWords_OUTER = 5 : i64
#PieceWords_LEVELS = 6 : i64
#INNER = 2 : i64

llvm.func @word(!llvm.ptr, i64) -> i64
llvm.func @group_of(!llvm.ptr, i64) -> !llvm.ptr
llvm.func @member_of(!llvm.ptr, i64) -> i64
llvm.func @is_ok(i32) -> i1
llvm.func @source_of(!llvm.ptr, i64, i64) -> !llvm.ptr
llvm.func @begin(!llvm.ptr, i64, !llvm.ptr, !llvm.ptr, i64) -> i32
llvm.func @end(!llvm.ptr, i64) -> i32
llvm.func @start(!llvm.ptr, i64, !llvm.ptr, !llvm.ptr, i64) -> i32
llvm.func @begin_wait(!llvm.ptr, i64, !llvm.ptr) -> i32
llvm.func @posted_slot(!llvm.ptr, i64, !llvm.ptr, i64) -> i64
llvm.func @end_wait(!llvm.ptr)
llvm.func @copy_piece(!llvm.ptr, !llvm.ptr, !llvm.ptr, i64)

// How many pieces the section's rank receives.
llvm.func @pieces_of(%section: !llvm.ptr) -> i64 attributes {always_inline} {
  %pieces_word = arith.constant #SectionWords_PIECES
  %count = llvm.call @word(%section, %pieces_word) : (!llvm.ptr, i64) -> i64
  llvm.return %count : i64
}

// The first of these pieces.
llvm.func @first_piece(%section: !llvm.ptr) -> !llvm.ptr attributes {always_inline} {
  %body_word = arith.constant #SectionWords_BODY
  %body = llvm.call @word(%section, %body_word) : (!llvm.ptr, i64) -> i64
  %piece = llvm.getelementptr %section[%body] : (!llvm.ptr, i64) -> !llvm.ptr, i64
  llvm.return %piece : !llvm.ptr
}

// The piece behind another.
llvm.func @next_piece(%piece: !llvm.ptr) -> !llvm.ptr attributes {always_inline} {
  %outer_word = arith.constant #PieceWords_OUTER
  %levels_word = arith.constant #PieceWords_LEVELS
  %inner = arith.constant #INNER
  %level_words = arith.constant 3 : i64
  %outer = llvm.call @word(%piece, %outer_word) : (!llvm.ptr, i64) -> i64
  %levels = arith.addi %outer, %inner : i64
  %more = arith.muli %levels, %level_words : i64
  %words = arith.addi %more, %levels_word : i64
  %next = llvm.getelementptr %piece[%words] : (!llvm.ptr, i64) -> !llvm.ptr, i64
  llvm.return %next : !llvm.ptr
}

// The member that sends a piece.
llvm.func @piece_member(%piece: !llvm.ptr) -> i64 attributes {always_inline} {
  %member_word = arith.constant #PieceWords_MEMBER
  %member = llvm.call @word(%piece, %member_word) : (!llvm.ptr, i64) -> i64
  llvm.return %member : i64
}

// Where a piece lies in a source that begins at `src`.
llvm.func @piece_source(%piece: !llvm.ptr, %src: !llvm.ptr) -> !llvm.ptr attributes {always_inline} {
  %source_word = arith.constant #PieceWords_SOURCE
  %source = llvm.call @word(%piece, %source_word) : (!llvm.ptr, i64) -> i64
  %from = llvm.getelementptr %src[%source] : (!llvm.ptr, i64) -> !llvm.ptr, i8
  llvm.return %from : !llvm.ptr
}

// Where it belongs in a target that begins at `dst`.
llvm.func @piece_target(%piece: !llvm.ptr, %dst: !llvm.ptr) -> !llvm.ptr attributes {always_inline} {
  %target_word = arith.constant #PieceWords_TARGET
  %target = llvm.call @word(%piece, %target_word) : (!llvm.ptr, i64) -> i64
  %to = llvm.getelementptr %dst[%target] : (!llvm.ptr, i64) -> !llvm.ptr, i8
  llvm.return %to : !llvm.ptr
}

llvm.func @mw_relayout(%ctx: !llvm.ptr, %number: i64, %src: !llvm.ptr, %dst: !llvm.ptr,
    %source_bytes: i64, %section: !llvm.ptr, %staging: !llvm.ptr) -> i32 {
  %c0 = arith.constant 0 : i64
  %c1 = arith.constant 1 : i64
  %ok = arith.constant 0 : i32
  %count = llvm.call @pieces_of(%section) : (!llvm.ptr) -> i64
  %first = llvm.call @first_piece(%section) : (!llvm.ptr) -> !llvm.ptr
  %last = scf.for %k = %c0 to %count step %c1 iter_args(%piece = %first) -> (!llvm.ptr) : i64 {
    %from = llvm.call @piece_source(%piece, %src) : (!llvm.ptr, !llvm.ptr) -> !llvm.ptr
    %to = llvm.call @piece_target(%piece, %dst) : (!llvm.ptr, !llvm.ptr) -> !llvm.ptr
    llvm.call @copy_piece(%to, %from, %piece, %c0) : (!llvm.ptr, !llvm.ptr, !llvm.ptr, i64) -> ()
    %next = llvm.call @next_piece(%piece) : (!llvm.ptr) -> !llvm.ptr
    scf.yield %next : !llvm.ptr
  }
  llvm.return %ok : i32
}

// Copy every piece that this rank receives to `dst`. slot: where the members' sources are, see @source_of.
llvm.func @exchange_from(%group: !llvm.ptr, %dst: !llvm.ptr, %section: !llvm.ptr, %slot: i64)
    attributes {always_inline} {
  %c0 = arith.constant 0 : i64
  %c1 = arith.constant 1 : i64
  %count = llvm.call @pieces_of(%section) : (!llvm.ptr) -> i64
  %first = llvm.call @first_piece(%section) : (!llvm.ptr) -> !llvm.ptr
  %last = scf.for %k = %c0 to %count step %c1 iter_args(%piece = %first) -> (!llvm.ptr) : i64 {
    %member = llvm.call @piece_member(%piece) : (!llvm.ptr) -> i64
    %peer = llvm.call @source_of(%group, %member, %slot) : (!llvm.ptr, i64, i64) -> !llvm.ptr
    %from = llvm.call @piece_source(%piece, %peer) : (!llvm.ptr, !llvm.ptr) -> !llvm.ptr
    %to = llvm.call @piece_target(%piece, %dst) : (!llvm.ptr, !llvm.ptr) -> !llvm.ptr
    llvm.call @copy_piece(%to, %from, %piece, %c0) : (!llvm.ptr, !llvm.ptr, !llvm.ptr, i64) -> ()
    %next = llvm.call @next_piece(%piece) : (!llvm.ptr) -> !llvm.ptr
    scf.yield %next : !llvm.ptr
  }
  llvm.return
}

llvm.func @mw_exchange(%ctx: !llvm.ptr, %number: i64, %src: !llvm.ptr, %dst: !llvm.ptr, %source_bytes: i64,
    %section: !llvm.ptr, %staging: !llvm.ptr) -> i32 {
  %published = arith.constant #PUBLISHED
  %group = llvm.call @group_of(%ctx, %number) : (!llvm.ptr, i64) -> !llvm.ptr
  %me = llvm.call @member_of(%ctx, %number) : (!llvm.ptr, i64) -> i64
  %met = llvm.call @begin(%group, %me, %src, %dst, %source_bytes) : (!llvm.ptr, i64, !llvm.ptr, !llvm.ptr, i64) -> i32
  %go = llvm.call @is_ok(%met) : (i32) -> i1
  %code = scf.if %go -> (i32) {
    llvm.call @exchange_from(%group, %dst, %section, %published) : (!llvm.ptr, !llvm.ptr, !llvm.ptr, i64) -> ()
    %parted = llvm.call @end(%group, %me) : (!llvm.ptr, i64) -> i32
    scf.yield %parted : i32
  } else {
    scf.yield %met : i32
  }
  llvm.return %code : i32
}

llvm.func @mw_exchange_start(%ctx: !llvm.ptr, %number: i64, %src: !llvm.ptr, %dst: !llvm.ptr, %source_bytes: i64,
    %section: !llvm.ptr, %staging: !llvm.ptr,
    %area: !llvm.ptr, %area_bytes: i64) -> i32 {
  %code = llvm.call @start(%ctx, %number, %src, %area, %area_bytes)
    : (!llvm.ptr, i64, !llvm.ptr, !llvm.ptr, i64) -> i32
  llvm.return %code : i32
}

llvm.func @mw_exchange_wait(%ctx: !llvm.ptr, %number: i64, %src: !llvm.ptr, %dst: !llvm.ptr, %source_bytes: i64,
    %section: !llvm.ptr, %staging: !llvm.ptr,
    %area: !llvm.ptr, %area_bytes: i64) -> i32 {
  %group = llvm.call @group_of(%ctx, %number) : (!llvm.ptr, i64) -> !llvm.ptr
  %me = llvm.call @member_of(%ctx, %number) : (!llvm.ptr, i64) -> i64
  %met = llvm.call @begin_wait(%group, %me, %area) : (!llvm.ptr, i64, !llvm.ptr) -> i32
  %go = llvm.call @is_ok(%met) : (i32) -> i1
  scf.if %go {
    %slot = llvm.call @posted_slot(%group, %me, %area, %area_bytes) : (!llvm.ptr, i64, !llvm.ptr, i64) -> i64
    llvm.call @exchange_from(%group, %dst, %section, %slot) : (!llvm.ptr, !llvm.ptr, !llvm.ptr, i64) -> ()
    llvm.call @end_wait(%area) : (!llvm.ptr) -> ()
  }
  llvm.return %met : i32
}
