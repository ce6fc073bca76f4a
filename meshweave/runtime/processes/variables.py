"""Read what launchers tell the processes that they start: the rank of each and the number of ranks."""

from collections.abc import Mapping

from meshweave.errors import MeshweaveError

LAUNCHERS = (
    ("MESHWEAVE_RANK", "MESHWEAVE_SIZE", "MESHWEAVE_LOCAL_RANK"),
    ("RANK", "WORLD_SIZE", "LOCAL_RANK"),
    ("OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE", "OMPI_COMM_WORLD_LOCAL_RANK"),
    ("PMI_RANK", "PMI_SIZE", "MPI_LOCALRANKID"),
    ("SLURM_PROCID", "SLURM_NTASKS", "SLURM_LOCALID"),
)
"""Of each launcher: the variables for rank, number of ranks, and number on the host."""


def launcher_variables(environ: Mapping[str, str]) -> tuple[str, int, int] | None:
    """Return the name of the variable with the number of ranks, this process's rank, and that number; None: no job.

    Raises MeshweaveError when the variables contradict each other.
    """
    for names in LAUNCHERS:
        if names[0] in environ and names[1] in environ:
            rank, nranks = (number_in(environ, name) for name in names[:2])
            if not 0 <= rank < nranks:
                raise MeshweaveError(f"{names[0]}={rank} is no rank of {names[1]}={nranks}")
            return names[1], rank, nranks
    return None


def number_in(environ: Mapping[str, str], name: str) -> int:
    """Return the number that a variable holds. Raises MeshweaveError for another text."""
    try:
        return int(environ[name])
    except ValueError:
        raise MeshweaveError(f"{name}={environ[name]!r:.40} is no number") from None
