"""What a placement minimises, as users say it: "time", "bytes", or "bytes within 2e-3" seconds."""

from dataclasses import dataclass
from math import inf

from meshweave.errors import UsageError

TIME, BYTES = "time", "bytes"


@dataclass(frozen=True)
class PlacementGoal:
    """Say what is minimised: predicted seconds, or the bytes of a rank, `is_bytes`.

    limit: on bytes; 0: what the program says. seconds: a limit on those where bytes are minimised.
    share: of the bytes between arguments and results that count. again: values may be computed again, not kept.
    """

    is_bytes: bool = False
    limit: int = 0
    seconds: float = inf
    share: float = 1.0
    again: bool = True

    @staticmethod
    def parse(objective: str) -> "PlacementGoal":
        """Read an objective. Raises UsageError for what is none."""
        name, within, seconds = objective.partition(" within ")
        limit = _number(seconds) if within else inf
        is_bounded = 0 < limit < inf and name == BYTES
        if name not in (TIME, BYTES) or (within and not is_bounded):
            raise UsageError(
                f'objective={objective!r:.60}: "time", "bytes" or "bytes within SECONDS" is right'
            )
        return PlacementGoal(name == BYTES, seconds=limit)

    @property
    def options(self) -> list[str]:
        """Return the options of dist-place that say it."""
        said = {
            f"objective={BYTES}": self.is_bytes,
            f"max-seconds={self.seconds}": self.seconds < inf,
            f"peak-bytes={self.limit}": self.limit > 0,
            f"share={self.share}": self.share != 1.0,
            "again=false": not self.again,
        }
        return [option for option, differs in said.items() if differs]


def _number(text: str) -> float:
    try:
        return float(text)
    except ValueError:
        return 0.0
