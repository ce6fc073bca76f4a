"""The functions `mw_exchange` and `mw_relayout`, as text: they follow the data that lowering/exchange.py
describes.

Engine `local`, and `mpi` in the shared window of a host, copy pieces straight between the members'
buffers. By the MPI library messages are packed, moved in one call or in parts, and unpacked; what lies
back to back for every member is sent or received where it is.
"""

from __future__ import annotations

from meshweave.lowering.copies import (
    INNER,
    LEVELS,
    MEMBER,
    NBYTES,
    OUTER,
    PACKED_SOURCE,
    PACKED_TARGET,
    SOURCE,
    TARGET,
    copy_piece,
)
from meshweave.lowering.exchange import (
    BODY,
    END,
    LARGEST,
    MESSAGES,
    PACKS,
    PIECES,
    RECEIVED_AT,
    SENDS,
    UNPACKS,
)
from meshweave.lowering.phrases import around, unless_failed, word

ALLTOALLV = "!llvm.ptr, !llvm.ptr, !llvm.ptr, i64, !llvm.ptr, !llvm.ptr, !llvm.ptr, i64, i64"
_SENDRECV = "!llvm.ptr, i32, i64, i32, i32, !llvm.ptr, i32, i64, i32, i32, i64, !llvm.ptr"
EXCHANGED = "%source_bytes: i64, %data: !llvm.ptr, %staging: !llvm.ptr"
_ARGUMENTS = f"%ctx: !llvm.ptr, %number: i64, %src: !llvm.ptr, %dst: !llvm.ptr, {EXCHANGED}"

# The section of this rank: %head, %pieces and their number.
_SECTION = f"""{word("%rank", "%ctx", 1)}
  %section_at = llvm.getelementptr %data[%rank] : (!llvm.ptr, i64) -> !llvm.ptr, i64
  %section = llvm.load %section_at : !llvm.ptr -> i64
  %head = llvm.getelementptr %data[%section] : (!llvm.ptr, i64) -> !llvm.ptr, i64
{word("%npieces", "%head", PIECES)}{word("%body", "%head", BODY)}
  %first_piece = llvm.getelementptr %data[%body] : (!llvm.ptr, i64) -> !llvm.ptr, i64
  %as_it_is = arith.constant 0 : i64"""


def _pieces(name: str, body: str, carried: str = "", types: str = "", following: str = "") -> str:
    """A loop, called `name`, over the pieces that are received: %piece, with %member and addresses
    in both buffers.
    """
    begin = f"%piece = %first_piece{carried}"
    return f"""
  %{name}:{1 + types.count("!")} = scf.for %k = %zero to %npieces step %one
      iter_args({begin}) -> (!llvm.ptr{types}) : i64 {{
{word("%member", "%piece", MEMBER)}{word("%source", "%piece", SOURCE)}
{word("%target", "%piece", TARGET)}{word("%nbytes", "%piece", NBYTES)}
{word("%outer", "%piece", OUTER)}
    %to = llvm.getelementptr %dst[%target] : (!llvm.ptr, i64) -> !llvm.ptr, i8{body}
    %three = arith.constant 3 : i64
    %always = arith.constant {LEVELS + 3 * INNER} : i64
    %more_words = arith.muli %outer, %three : i64
    %words = arith.addi %more_words, %always : i64
    %next_piece = llvm.getelementptr %piece[%words] : (!llvm.ptr, i64) -> !llvm.ptr, i64
    scf.yield %next_piece{following} : !llvm.ptr{types}
  }}"""


_CONSTANTS = """
  %zero = arith.constant 0 : i64
  %one = arith.constant 1 : i64"""


def relayout_text() -> str:
    """`mw_relayout`: a rank rearranges what it holds itself."""
    body = f"""
    %from = llvm.getelementptr %src[%source] : (!llvm.ptr, i64) -> !llvm.ptr, i8
{copy_piece("%to", "%from", "%piece", "%as_it_is")}"""
    return f"""
llvm.func @mw_relayout({_ARGUMENTS}) -> i32 {{{_CONSTANTS}{_SECTION}{_pieces("copied", body)}
  %fine = arith.constant 0 : i32
  llvm.return %fine : i32
}}
"""


def pulling_text() -> str:
    """The work of an exchange where the members' buffers can be read: what comes before leaves
    %group, %me and %source_field, and all have published their buffers.
    """
    body = f"""
    %peer = llvm.call @mw_peer(%group, %member, %source_field)
      : (!llvm.ptr, i64, i64) -> !llvm.ptr
    %from = llvm.getelementptr %peer[%source] : (!llvm.ptr, i64) -> !llvm.ptr, i8
{copy_piece("%to", "%from", "%piece", "%as_it_is")}"""
    return f"{_CONSTANTS}{_SECTION}{_pieces('copied', body)}"


def messages_text(symbol: str, begin: str, end: str, limit: int, piece: int) -> str:
    """`symbol`, the exchange with messages of MPI: begin leaves the communicator %comm, %size, %me,
    %ok, %byte and %status_at; end returns %rc as a code of ours.

    limit: bytes up to which MPI's counts and places go; piece: those of each message beyond.
    """
    return f"""
llvm.func @{symbol}({_ARGUMENTS}) -> i32 {{
{begin}{_CONSTANTS}{_SECTION}{_prepare()}
  %climit = arith.constant {limit} : i64
  %whole = arith.cmpi sle, %end, %climit : i64
  %rc = scf.if %whole -> (i32) {{{_at_once()}
    scf.yield %r : i32
  }} else {{{_one_by_one(piece)}
    scf.yield %all : i32
  }}{_unpack()}{end}"""


def _prepare() -> str:
    """Pack what goes to others, and copy what stays."""
    own = f"""
    %mine = arith.cmpi eq, %member, %me : i64
    scf.if %mine {{
    %from = llvm.getelementptr %src[%source] : (!llvm.ptr, i64) -> !llvm.ptr, i8
{copy_piece("%to", "%from", "%piece", "%as_it_is")}
    }}"""
    heads = "".join(
        word(f"%{name}", "%head", index)
        for name, index in (
            ("packs", PACKS), ("unpacks", UNPACKS), ("sends", SENDS), ("messages", MESSAGES),
            ("received_at", RECEIVED_AT), ("largest", LARGEST), ("end", END),
        )
    )  # fmt: skip
    return f"""{heads}
  %must_pack = arith.cmpi ne, %packs, %zero : i64
  %must_unpack = arith.cmpi ne, %unpacks, %zero : i64
  %inbox = llvm.getelementptr %staging[%received_at] : (!llvm.ptr, i64) -> !llvm.ptr, i8
  %out = llvm.select %must_pack, %staging, %src : i1, !llvm.ptr
  %in = llvm.select %must_unpack, %inbox, %dst : i1, !llvm.ptr
  %mail = llvm.getelementptr %head[%messages] : (!llvm.ptr, i64) -> !llvm.ptr, i64
  %list = llvm.getelementptr %head[%sends] : (!llvm.ptr, i64) -> !llvm.ptr, i64
  scf.if %must_pack {{
    %packed_form = arith.constant {PACKED_TARGET} : i64
    %nsends = llvm.load %list : !llvm.ptr -> i64
    %packed_to = scf.for %k = %zero to %nsends step %one iter_args(%to = %staging)
        -> (!llvm.ptr) : i64 {{
      %k1 = arith.addi %k, %one : i64
      %place_at = llvm.getelementptr %list[%k1] : (!llvm.ptr, i64) -> !llvm.ptr, i64
      %place = llvm.load %place_at : !llvm.ptr -> i64
      %piece = llvm.getelementptr %data[%place] : (!llvm.ptr, i64) -> !llvm.ptr, i64
{word("%source", "%piece", SOURCE)}{word("%nbytes", "%piece", NBYTES)}
      %from = llvm.getelementptr %src[%source] : (!llvm.ptr, i64) -> !llvm.ptr, i8
{copy_piece("%to", "%from", "%piece", "%packed_form")}
      %next = llvm.getelementptr %to[%nbytes] : (!llvm.ptr, i64) -> !llvm.ptr, i8
      scf.yield %next : !llvm.ptr
    }}
  }}{_pieces("kept", own)}"""


def _at_once() -> str:
    """All messages in one call of MPI, whose tables are made on the stack."""
    columns = "".join(
        f"""{word(f"%w{k}", "%row", k)}
      %n{k} = arith.trunci %w{k} : i64 to i32
      %column{k} = llvm.getelementptr %table{k}[%j] : (!llvm.ptr, i64) -> !llvm.ptr, i32
      llvm.store %n{k}, %column{k} : i32, !llvm.ptr"""
        for k in range(4)
    )
    tables = "".join(
        f"\n    %table{k} = llvm.alloca %size x i32 : (i64) -> !llvm.ptr" for k in range(4)
    )
    return f"""{tables}
    %four = arith.constant 4 : i64
    scf.for %j = %zero to %size step %one : i64 {{
      %row_at = arith.muli %j, %four : i64
      %row = llvm.getelementptr %mail[%row_at] : (!llvm.ptr, i64) -> !llvm.ptr, i64{columns}
    }}
    %r = llvm.call @MPI_Alltoallv(%out, %table0, %table1, %byte, %in, %table2, %table3, %byte, %comm)
      : ({ALLTOALLV}) -> i32"""


def _one_by_one(piece: int) -> str:
    """A message to one member and from another at a time, each in as many parts as the largest of all
    takes: so every part that is sent is received.
    """
    return f"""
    %cpiece = arith.constant {piece} : i64
    %four = arith.constant 4 : i64
    %tag = arith.constant 78 : i32
    %all = scf.for %distance = %one to %size step %one iter_args(%before = %ok) -> (i32) : i64 {{{
        around("%receiver", "%sender")
    }
      %out_row = arith.muli %receiver, %four : i64
      %in_row = arith.muli %sender, %four : i64
      %out_at = llvm.getelementptr %mail[%out_row] : (!llvm.ptr, i64) -> !llvm.ptr, i64
      %in_at = llvm.getelementptr %mail[%in_row] : (!llvm.ptr, i64) -> !llvm.ptr, i64
{word("%n_out", "%out_at", 0)}{word("%begin_out", "%out_at", 1)}
{word("%n_in", "%in_at", 2)}{word("%begin_in", "%in_at", 3)}
      %receiver32 = arith.trunci %receiver : i64 to i32
      %sender32 = arith.trunci %sender : i64 to i32
      %message = scf.for %at = %zero to %largest step %cpiece iter_args(%sofar = %before)
          -> (i32) : i64 {{
{_part("out")}{_part("in")}{
        unless_failed(f'''
          %r = llvm.call @MPI_Sendrecv(%from_out, %count_out, %byte, %receiver32, %tag,
            %from_in, %count_in, %byte, %sender32, %tag, %comm, %status_at)
            : ({_SENDRECV}) -> i32''')
    }
      }}
      scf.yield %message : i32
    }}"""


def _part(way: str) -> str:
    """What of a message, out or in, goes in this part: its address and bytes."""
    return f"""
        %rest_{way} = arith.subi %n_{way}, %at : i64
        %some_{way} = arith.maxsi %rest_{way}, %zero : i64
        %most_{way} = arith.minsi %some_{way}, %cpiece : i64
        %count_{way} = arith.trunci %most_{way} : i64 to i32
        %place_{way} = arith.addi %begin_{way}, %at : i64
        %from_{way} = llvm.getelementptr %{way}[%place_{way}] : (!llvm.ptr, i64) -> !llvm.ptr, i8"""


def _unpack() -> str:
    """Put what came where it belongs."""
    body = f"""
    %foreign = arith.cmpi ne, %member, %me : i64
    %next_message = scf.if %foreign -> (!llvm.ptr) {{
{copy_piece("%to", "%message", "%piece", "%packed_form")}
      %behind = llvm.getelementptr %message[%nbytes] : (!llvm.ptr, i64) -> !llvm.ptr, i8
      scf.yield %behind : !llvm.ptr
    }} else {{
      scf.yield %message : !llvm.ptr
    }}"""
    loop = _pieces("unpacked", body, ", %message = %inbox", ", !llvm.ptr", ", %next_message")
    return f"""
  scf.if %must_unpack {{
  %packed_form = arith.constant {PACKED_SOURCE} : i64{loop}
  }}"""
