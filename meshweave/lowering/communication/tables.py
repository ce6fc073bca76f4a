"""Name the words of the table that an exchange follows: 64 bits each.

A table begins with a word for each rank: where its section begins; equal sections are stored once. A section is a head
of `SectionWords`, then the pieces that its rank receives, by sender, the rank's own first. Where messages are sent,
there follow MAIL_WORDS words for each member of the group, and the places of the pieces that the rank sends, by
receiver: each is in the section of its receiver. A message is its pieces one after the other, each packed as its levels
say.

A piece is `PieceWords`, then its levels, the innermost first, each (count, source step, target step). Offsets, steps
and lengths are in bytes.
"""

INNER = 2  # levels that every piece has
PACKED_TARGET, PACKED_SOURCE = (
    1,
    2,
)  # the side of a piece that lies back to back, instead of as it says
MAIL_WORDS = (
    4  # bytes to send, where they begin among all that are sent, bytes to receive, where they begin
)


class PieceWords:
    """Number the words of a piece.

    They say: the member that sends it, offsets in the source and the target, the length of a run, bytes in all, the
    number of levels beyond INNER; then come the levels.
    """

    MEMBER = 0
    SOURCE = 1
    TARGET = 2
    RUN = 3
    NBYTES = 4
    OUTER = 5
    LEVELS = 6


class SectionWords:
    """Number the words of a section's head.

    They say: how many pieces are received; where they begin; whether messages are packed, and unpacked; where the
    pieces to send are listed; where the MAIL_WORDS of each member begin; where received messages begin in the staging
    buffer; the largest message of all; the furthest that any message of any rank ends.
    """

    PIECES = 0
    BODY = 1
    PACKS = 2
    UNPACKS = 3
    SENDS = 4
    MESSAGES = 5
    RECEIVED_AT = 6
    LARGEST = 7
    END = 8
    HEAD = 9  # words of a head
