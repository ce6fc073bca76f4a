"""Define in bytes what compiled code and engines agree on: a step's table, and the memory where ranks meet.

No other file writes these numbers down; those of target gpu are in device.py.
"""

from __future__ import annotations

from dataclasses import dataclass

ALIGNMENT = 64  # in bytes, of the arena and of every input and output buffer
KINDS = ("sum", "max", "min", "prod")  # reductions that compiled collectives know
HOST_CALL = "mw_host_call"
"""What code calls where Python does a part: (number, rank, pointers of operands and results).

The rank is 0 where all ranks call a function with effects, PURE where it has none.
"""
PURE = -1
PYTHON = "python"  # what a manifest names among its libraries then
DTYPES = ("f64", "f32", "f16", "bf16", "i64", "i32", "i16", "i8", "i1")  # dtypes they reduce


def rounded(nbytes: int) -> int:
    """Round `nbytes` up to where another buffer may begin."""
    return -(-nbytes // ALIGNMENT) * ALIGNMENT


@dataclass(frozen=True)
class Slots:
    """Number the 8-byte slots of the table that `step(ptr ctx)` is given.

    arena: pointer; rank: i64; status: pointer to the rank's `StatusRow`; private: the engine's own pointer.
    Then a handle and a member index for each group, the pointers of the inputs and outputs, and a pointer to this
    rank's section of each exchange (`SectionWords`; on gpus `device.ExchangeWords`), last one to its `CoresBlock`.
    """

    groups: int
    inputs: int
    outputs: int
    exchanges: int
    arena: int = 0
    rank: int = 1
    status: int = 2
    private: int = 3

    def handle(self, group: int) -> int:
        """Return the slot of a group's handle."""
        return 4 + 2 * group

    def member(self, group: int) -> int:
        """Return the slot of this rank's member index in a group."""
        return self.handle(group) + 1

    def input(self, index: int) -> int:
        """Return the slot of an input's pointer."""
        return self.handle(self.groups) + index

    def output(self, index: int) -> int:
        """Return the slot of an output's pointer."""
        return self.input(self.inputs) + index

    def exchange(self, index: int) -> int:
        """Return the slot of the pointer to an exchange's section."""
        return self.output(self.outputs) + index

    @property
    def cores(self) -> int:
        """Return the slot of the pointer to the rank's `CoresBlock`, 0 where it has one core."""
        return self.exchange(self.exchanges)

    @property
    def count(self) -> int:
        """Return the number of slots in the table."""
        return self.cores + 1


ABORTED = 0x7FFF  # code of a collective that left its wait because another rank had failed


class WorldLayout:
    """Lay out the `local` engine's shared block, in bytes.

    A rank's `private` slot points at the world, a group's handle at its block. World: abort flag (i64, not 0: leave
    every wait), then how often a wait looks before it yields the processor (i64). Group: its size (i64), a pointer to
    the world, then from MEMBERS one cache line per member: arrivals (i64, only ever grows), the source and destination
    it published before its last arrival, and its arena.
    """

    LINE = 64
    ABORT = 0
    SPINS = 64
    WORLD_BYTES = 128
    SIZE = 0
    WORLD = 8
    MEMBERS = 64
    ARRIVED = 0
    SOURCE = 8
    TARGET = 16
    ARENA = 24

    @classmethod
    def group_bytes(cls, size: int) -> int:
        """Return the bytes of the block of a group of `size` members."""
        return cls.MEMBERS + cls.LINE * size


class AsyncArea:
    """Lay out the area of a collective that is started before it is waited for, in bytes of a rank's arena.

    It is at the same place on all ranks. A line holds how often the collective was started (i64, only ever grows), the
    number of MPI requests still open (i64), and these; another line how often this rank has waited for it. SLOTS
    copies of the last data sent follow, used in turn. Both lines have the sleepers of a `GroupRecord`'s line.
    """

    STARTED = 0
    ACTIVE = 8
    REQUESTS = 32
    WAITED = 64
    SLOT = 128
    SLOTS = 2

    @classmethod
    def nbytes(cls, sent: int) -> int:
        """Return the bytes of the area of a collective that sends `sent` bytes."""
        return cls.SLOT + cls.SLOTS * rounded(sent)


class MpiTable:
    """Number the 8-byte slots of the `mpi` engine's table at the `private` slot: MPI handles and special addresses.

    A group's handle points to its record (`GroupRecord`).
    """

    STATUS = 0
    IN_PLACE = 1
    BYTE = 2
    COUNT = 3 + len(DTYPES) * (1 + len(KINDS))

    @staticmethod
    def datatype(dtype: str) -> int:
        """Return the slot of the MPI datatype of a dtype."""
        return 3 + DTYPES.index(dtype)

    @staticmethod
    def reduction(kind: str, dtype: str) -> int:
        """Return the slot of the MPI operation that reduces `dtype` by `kind`."""
        return 3 + len(DTYPES) * (1 + KINDS.index(kind)) + DTYPES.index(dtype)


STAGING = "mw_staging"  # the function that returns the bytes of staging that the program needs
OUTSIDE = 0x7FFE  # code of a meeting in which some member's operand lies in no shared memory


class GroupRecord:
    """Lay out what a rank of the `mpi` engine knows of a group, in bytes; the group's handle points to it.

    The group's size (i64), its communicator, whether its members meet in a shared window (i64), how often a wait looks
    before it yields (i64), where MPI may be polled from a wait (pointer to POLL_BYTES, 0: nowhere), a part of the own
    window for operands that lie elsewhere (pointer, bytes), the bytes of the own window and of the own buffers, how
    often a wait yields before it sleeps (i64). Then for each member pointers, in this rank's address space, to its
    line, its window and its buffers.

    A line is one cache line of a member's window: arrivals (odd: within a collective), the source and destination that
    it published before its last arrival, and how many members sleep until it arrives. A published place is its offset
    times two, plus one when it lies in the buffers; NOWHERE when it lies in neither.
    """

    SIZE = 0
    COMM = 8
    SHARED = 16
    SPINS = 24
    POLL = 32
    STAGING = 40
    STAGING_BYTES = 48
    WINDOW_BYTES = 56
    BUFFERS_BYTES = 64
    YIELDS = 72
    MEMBERS = 128
    MEMBER = 32
    MEMBER_LINE = 0
    MEMBER_WINDOW = 8
    MEMBER_BUFFERS = 16
    LINE = 64
    ARRIVED = WorldLayout.ARRIVED
    SOURCE = WorldLayout.SOURCE
    TARGET = WorldLayout.TARGET
    SLEEPERS = 24
    NOWHERE = -1
    POLL_BYTES = 512

    @classmethod
    def nbytes(cls, size: int) -> int:
        """Return the bytes of the record of a group of `size` members."""
        return cls.MEMBERS + cls.MEMBER * size


def reduction_symbol(kind: str, dtype: str) -> str:
    """Name the compiled MPI operation for a reduction that MPI lacks, or that treats NaN differently from ours."""
    return f"mw_op_{kind}_{dtype}"


IDLE, RUNNING, RETURNED = 0, 1, 2  # states of a rank that compiled code writes


class StatusRow:
    """Lay out a rank's row of the status board, in words (i64); the `status` slot points at it.

    How many collectives the rank has ever started, and how many of them have ended: all, or all but the last; the
    state; how far a device is; how many collectives it had started when this call began, and how many calls have begun;
    the process, and when it began (0: not told); whether the rank is to leave (not 0: loops that data keeps going look
    at it); the address of a `TraceBuffer` (0: nobody traces). From RING on a word for each of the last ENTRIES
    collectives, used in turn: the op's number, plus START or WAIT where it was that half of an async collective.
    """

    STARTED = 0
    ENDED = 1
    STATE = 2
    PROGRESS = 3
    BEFORE = 4
    CALLS = 5
    PID = 6
    BORN = 7
    LEAVE = 8
    TRACE = 9
    RING = 16  # so that a row is whole cache lines
    ENTRIES = 256
    WORDS = RING + ENTRIES
    START = 1 << 32
    WAIT = 2 << 32


class TraceBuffer:
    """Lay out what a rank writes while it is traced, in words (i64).

    How many marks it has made, and for how many there is room; from HEAD on two words for each: the processor's time
    stamp, and what begins then. That is the op's number for a collective, plus START or WAIT of `StatusRow` for a half
    of an async one; KERNEL and its number for a kernel; COPY for a copy between host and device; NOTHING where the step
    ends or fails, which is the last mark of each call. On gpus each mark is an event in the place of the time stamp,
    and there is one behind each op, too.
    """

    COUNT = 0
    ROOM = 1
    HEAD = 2
    NOTHING = 0
    KERNEL = 4 << 32
    COPY = 8 << 32
    MARK = "mw_mark"

    @classmethod
    def words(cls, marks: int) -> int:
        """Return the words of a buffer with room for so many marks."""
        return cls.HEAD + 2 * marks


# Calls of engine `local`.


class ServeBlock:
    """Lay out the block through which ranks are given calls, in bytes.

    First the number of calls made (i64), the number of ranks (i64), how often a wait looks before it yields the
    processor (i64), the address of `step`, the address of the world whose abort flag a failing rank sets, and how
    often a wait yields before it sleeps (i64).

    From RANKS on for each rank: the number of the call to run next, the address of its table (0: leave), whether the
    rank sleeps until there is one; then, on a line of its own, the number of the last finished call, what `step`
    returned, and whether the caller sleeps until it ends.
    """

    NUMBER = 0
    NRANKS = 8
    SPINS = 16
    STEP = 24
    WORLD = 32
    YIELDS = 40
    RANKS = 64
    RANK_BYTES = 128
    GO = 0
    CONTEXT = 8
    SERVER_SLEEPS = 16
    DONE = 64
    RESULT = 72
    CALLER_SLEEPS = 80
    PENDING = 2

    @classmethod
    def nbytes(cls, nranks: int) -> int:
        """Return the bytes of the block."""
        return cls.RANKS + cls.RANK_BYTES * nranks


class CoresBlock:
    """Lay out the block through which the cores of a rank share the work of a kernel, in bytes.

    First how many other cores help (i64); at the places of `ServeBlock`, how often a wait looks before it yields the
    processor, and how often it yields before it sleeps. The function that does a piece of the work, and the address of
    its arguments.

    The ticket (i64) lies on a line of its own: the number of the work in the upper half, in the lower the pieces that
    nobody has taken; LEAVE: the helpers are to go. How many helpers sleep until there is work. On another line how many
    pieces are done, and whether the rank sleeps until all are.
    """

    HELPERS = 0
    SPINS = ServeBlock.SPINS
    PIECE = 24
    ARGUMENTS = 32
    YIELDS = ServeBlock.YIELDS
    TICKET = 64
    SLEEPERS = 72
    DONE = 128
    RANK_SLEEPS = 136
    LEAVE = -1
    BYTES = 192


class DirectCall:
    """Lay out what a builtin function of Python knows of the code that it calls on small Arrays of one rank, in bytes.

    The number of arguments; where an Array has its slots `_held`, `kind` and `_alone`; addresses of objects of Python's
    and NumPy's: the type Array, how an object is made, and without which arguments, None, True, how an array of NumPy's
    is made like another one, the one that the result is like, the kind of the result, the function for all other calls.

    Then the code: its address, that of its table, and of the entry there of the first argument. A loop of a function of
    NumPy's: the address of the entry of the result, the number of elements, and addresses of its steps and its data. A
    step: the address of the buffer of its result, and the bytes of that; a loop has 0 there. For each of MOST
    arguments: its form, an Array, a float taken as f32 or as f64, also one of an integer of Python's (OF_AN_INTEGER is
    added), or an integer in bounds, which come last, and room for the bits of a number.

    Of a function of NumPy's that moves or chooses elements, instead of all that: it, 0 for indexing, the dict of kinds
    by their shapes, the name "shape", the type of NumPy's arrays, the addresses of what copies one, and makes one of a
    scalar, and the bytes of an element. Of both: the type Exception; what is none is raised, as Ctrl-C is.
    """

    ARGUMENTS = 0
    HELD = 8
    KIND = 16
    ALONE = 24
    ARRAY = 32
    NEW = 40
    NO_ARGUMENTS = 48
    NONE = 56
    TRUE = 64
    LIKE = 72
    TEMPLATE = 80
    RESULT = 88
    SLOW = 96
    RUN = 104
    TABLE = 112
    FIRST = 120
    OUTPUT = 128
    BUFFER = 136
    NBYTES = 144
    COUNT = 152
    STEPS = 160
    DATA = 168
    FORMS = 176
    NUMBERS = 208
    CALLED = 240
    KINDS = 248
    SHAPE = 256
    NDARRAY = 264
    COPY = 272
    OF_SCALAR = 280
    ITEMSIZE = 288
    LOWEST = 296
    HIGHEST = 304
    EXCEPTION = 312
    BYTES = 320
    MOST = 4
    AN_ARRAY = 0
    F32 = 1
    F64 = 2
    AN_INTEGER = 3
    OF_AN_INTEGER = 4


# Exchanges.

INNER = 2  # levels that every piece has
PACKED_TARGET, PACKED_SOURCE = 1, 2  # the side of a piece that lies back to back, not as it says
MAIL_WORDS = 4  # bytes to send, where they begin, bytes to receive, where they begin


class PieceWords:
    """Number the words of a piece, 64 bits each. Offsets, steps and lengths are in bytes.

    They say: the member that sends it (of one to send, that wants it), offsets in the source and the target, the length
    of a run, bytes in all, the number of levels beyond INNER. Then come the levels, the innermost first, each (count,
    source step, target step).
    """

    MEMBER = 0
    SOURCE = 1
    TARGET = 2
    RUN = 3
    NBYTES = 4
    OUTER = 5
    LEVELS = 6


class SectionWords:
    """Number the words at the head of a section: what one rank does in an exchange. Places are words behind the first.

    They say: how many pieces are received, and where they begin, by sender, the rank's own first. Where messages are
    sent: how many pieces are packed, and where they begin, by receiver; where the MAIL_WORDS of each member begin;
    whether messages are packed, and unpacked; where received ones begin in the staging buffer; bounds that all ranks
    agree on, of the bytes of a message, and of where messages end. A message is its pieces one after the other, each
    packed as its levels say.
    """

    PIECES = 0
    BODY = 1
    SENDS = 2
    SENT = 3
    MESSAGES = 4
    PACKS = 5
    UNPACKS = 6
    RECEIVED_AT = 7
    LARGEST = 8
    END = 9
    HEAD = 10  # words of a head
