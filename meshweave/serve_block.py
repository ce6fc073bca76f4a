"""What compiled code and the `local` engine agree on about calls: the block through which a call reaches the ranks
(lowering/serve.py), and a rank's state on the status board. Nobody else writes these numbers down.
"""

IDLE, RUNNING, RETURNED = 0, 1, 2
STATE = 2  # i64 of a rank's row of the status board, behind the op started and the op finished


class ServeBlock:
    """Bytes. First how many calls there were (i64), the number of ranks (i64), how often a wait looks before it
    yields the processor between two looks (i64), the address of `step`, and of the world whose abort flag a rank that
    fails sets, and how often a wait yields before it sleeps (i64).

    From RANKS on for each rank: the number of the call that it shall run, the address of its table (0: leave), whether
    it sleeps until there is one; then, on a line of its own, the number of the last call that it ended, what `step`
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
        """Bytes of the block."""
        return cls.RANKS + cls.RANK_BYTES * nranks
