"""Define what a flight recorder writes to disk: the last collectives of each rank of a host, as versioned JSON."""

from __future__ import annotations

import json
import os
from collections.abc import Iterable
from dataclasses import asdict, dataclass
from pathlib import Path

from meshweave.bundle import OpInfo, op_of
from meshweave.errors import MeshweaveError, UsageError
from meshweave.files.records import record
from meshweave.files.whole import regular_bytes, renamed_to
from meshweave.layout import Mesh
from meshweave.runtime.flight.processes import PROCESS_STATES
from meshweave.runtime.flight.records import STATES, RankRecord

KIND, FORMAT = "meshweave flight recorder", 1
PATTERN = "flight-*.json"
_LAST = 1 << 43  # milliseconds since 1970: in the year 2248
LARGEST = 256 << 20  # bytes; a dump of 1,024 ranks takes about 20 MB


@dataclass(frozen=True)
class Dump:
    """Hold what one host knows of a fault.

    incident: the same in the dumps of all hosts. reason: timeout, failure, signal or death. line: what the user was
    told. host: its name. written: in milliseconds since 1970. program: names the code. ranks: all of the mesh; those of
    other hosts are "elsewhere".
    """

    incident: str
    reason: str
    line: str
    host: str
    written: int
    program: str
    engine: str
    mesh: str
    ops: tuple[OpInfo, ...]
    ranks: tuple[RankRecord, ...]
    kind: str = KIND
    format: int = FORMAT

    def __post_init__(self) -> None:
        mesh, numbers = Mesh.parse(self.mesh), [rank.rank for rank in self.ranks]
        if mesh.is_symbolic or len(numbers) != mesh.nranks or numbers != list(range(len(numbers))):
            raise MeshweaveError(f"its ranks are not those of mesh ({self.mesh})")
        if self.written > _LAST:
            raise MeshweaveError(f"it was written at {self.written} ms, which is no time")
        for rank in self.ranks:
            if rank.state not in STATES or rank.process not in PROCESS_STATES:
                raise MeshweaveError(
                    f"rank {rank.rank} has an unknown state: {rank.state!r:.20}, process {rank.process!r:.20}"
                )
            told = [entry.sequence for entry in rank.entries]
            if told != list(range(rank.count - len(told) + 1, rank.count + 1)):
                raise MeshweaveError(
                    f"the collectives of rank {rank.rank} are not numbered in order"
                )

    def op(self, number: int) -> OpInfo:
        """Return the op of that number; an unnamed one for numbers that the program does not list."""
        return op_of(self.ops, number)

    def to_json(self) -> str:
        """Return it as JSON, a line for each rank."""
        return json.dumps(asdict(self)).replace('{"rank":', '\n{"rank":') + "\n"

    @staticmethod
    def from_json(text: str | bytes, name: str) -> Dump:
        """Read what `to_json` wrote. Raises MeshweaveError, which begins with `name`, for anything else."""
        try:
            value = json.loads(text)
        except (ValueError, RecursionError) as error:
            raise MeshweaveError(f"{name}: not a {KIND}, or cut short ({error})") from None
        if not isinstance(value, dict) or value.get("kind") != KIND:
            raise MeshweaveError(f"{name}: not a {KIND}")
        if value.get("format") != FORMAT:
            raise MeshweaveError(
                f"{name}: format {value.get('format')!r:.40}, this version reads format {FORMAT}"
            )
        try:
            return record(Dump, value, "the dump")
        except MeshweaveError as error:
            raise MeshweaveError(f"{name}: the {KIND} is damaged: {error}") from None


def flight_folder(path: str | os.PathLike[str] | None) -> str | None:
    """Return a folder for dumps, made if need be; None for None. Raises UsageError where nothing can be written."""
    if path is None:
        return None
    try:
        os.makedirs(path, exist_ok=True)
    except (OSError, ValueError) as error:
        reason = error.strerror if isinstance(error, OSError) else str(error)
        raise UsageError(f"flight: {path}: cannot be made: {reason}") from None
    if not os.access(path, os.W_OK | os.X_OK):
        raise UsageError(f"flight: {path}: cannot be written")
    return os.path.abspath(path)


def write_dump(dump: Dump, folder: str) -> str:
    """Write a dump, whole or not at all, into a folder, made if need be; return its path. Raises OSError."""
    os.makedirs(folder, exist_ok=True)
    host = dump.host.replace("/", "_")
    path = os.path.join(folder, f"flight-{dump.incident}-{host}-{os.getpid()}.json")
    with renamed_to(path) as out:
        out.write(dump.to_json().encode())
    return path


def read_dumps(paths: Iterable[str]) -> tuple[list[Dump], list[MeshweaveError]]:
    """Read dumps, each a file or a folder of such, and return them with what is wrong with the others.

    Raises UsageError for a folder without any.
    """
    dumps, errors = [], []
    for path in _files(paths):
        try:
            dumps.append(_read(path))
        except MeshweaveError as error:
            errors.append(error)
    return dumps, errors


def _files(paths: Iterable[str]) -> list[Path]:
    found = []
    for path in map(Path, paths):
        if not path.is_dir():
            found.append(path)
            continue
        inside = sorted(path.glob(PATTERN))
        if not inside:
            raise UsageError(f"{path}: no {PATTERN} in this folder")
        found += inside
    return found


def _read(path: Path) -> Dump:
    """Read a dump. Raises MeshweaveError for a file that cannot be read or is none."""
    try:
        data = regular_bytes(path, LARGEST)
    except (OSError, ValueError) as error:
        reason = error.strerror if isinstance(error, OSError) else str(error)
        raise MeshweaveError(f"{path}: cannot be read: {reason}") from None
    if data is None:
        raise MeshweaveError(f"{path}: not a regular file of at most {LARGEST >> 20} MiB")
    return Dump.from_json(data, str(path))
