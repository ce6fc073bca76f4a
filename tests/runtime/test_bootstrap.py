"""How ranks find each other: what launchers say, and the stores where they meet."""

from __future__ import annotations

import socket
import threading
from contextlib import contextmanager

import pytest
from ports import free_port

from meshweave.errors import MeshweaveError, RankError
from meshweave.runtime.gpu.groups import agree
from meshweave.runtime.processes.bootstrap import (
    FileStore,
    JobRank,
    MemoryStore,
    discover,
    first_host,
    open_store,
)
from meshweave.runtime.processes.store import TcpStore

TORCHRUN = {
    "RANK": "5", "WORLD_SIZE": "8", "LOCAL_RANK": "1", "MASTER_ADDR": "node1",
    "MASTER_PORT": "29500",
}  # fmt: skip
SLURM = {
    "SLURM_PROCID": "3", "SLURM_NTASKS": "4", "SLURM_LOCALID": "1", "SLURM_JOB_ID": "70123",
    "SLURM_JOB_NODELIST": "gpu[03-05,09],login1",
}  # fmt: skip
OPENMPI = {
    "OMPI_COMM_WORLD_RANK": "1", "OMPI_COMM_WORLD_SIZE": "2", "OMPI_COMM_WORLD_LOCAL_RANK": "0",
    "MESHWEAVE_STORE": "file:///shared/job",
}  # fmt: skip
HYDRA = {"PMI_RANK": "1", "PMI_SIZE": "2", "MPI_LOCALRANKID": "1", "MESHWEAVE_STORE": "tcp://h:1"}
TOKEN = b"a secret of this job"
OURS = {"MESHWEAVE_RANK": "0", "MESHWEAVE_SIZE": "2", "MESHWEAVE_LOCAL_RANK": "0"}


@pytest.mark.parametrize(
    ("environ", "place"),
    [
        ({}, JobRank(0, 1, 0)),
        (TORCHRUN, JobRank(5, 8, 1, "tcp://node1:29501")),
        (SLURM, JobRank(3, 4, 1, "tcp://gpu03:30123")),
        (OPENMPI, JobRank(1, 2, 0, "file:///shared/job")),
        (HYDRA, JobRank(1, 2, 1, "tcp://h:1")),
        (OURS | TORCHRUN | {"MESHWEAVE_STORE": "file:///f"}, JobRank(0, 2, 0, "file:///f")),
        (HYDRA | {"MESHWEAVE_TOKEN": "s"}, JobRank(1, 2, 1, "tcp://h:1", "s")),
        ({"RANK": "0", "WORLD_SIZE": "1"}, JobRank(0, 1, 0)),
    ],
)
def test_what_launchers_say(environ, place):
    assert discover(environ) == place


@pytest.mark.parametrize(
    ("environ", "line"),
    [
        ({"RANK": "2", "WORLD_SIZE": "2"}, "RANK=2 is no rank of WORLD_SIZE=2"),
        ({"RANK": "x", "WORLD_SIZE": "2"}, "RANK='x' is no number"),
        ({"PMI_RANK": "0", "PMI_SIZE": "2"}, "do not know where to meet: set MESHWEAVE_STORE to"),
    ],
)
def test_what_does_not_fit_is_told(environ, line):
    with pytest.raises(MeshweaveError, match=line):
        discover(environ)


@pytest.mark.parametrize(
    ("hosts", "first"),
    [
        ("gpu[03-05,09],login1", "gpu03"), ("a1", "a1"), ("a1,a2", "a1"), ("n[7]", "n7"),
        ("rack[2,4]-gpu", "rack2-gpu"),
    ],
)  # fmt: skip
def test_the_first_host_of_a_list(hosts, first):
    assert first_host(hosts) == first


@pytest.fixture(params=["file", "tcp"])
def where(request, tmp_path):
    return f"file://{tmp_path}/job" if request.param == "file" else f"tcp://127.0.0.1:{free_port()}"


@contextmanager
def opened(where, seconds):
    """Stores of three ranks."""
    made = [open_store(JobRank(rank, 3, rank, where, TOKEN.decode()), seconds) for rank in range(3)]
    yield made
    for store in reversed(made):
        store.close()


@pytest.fixture
def stores(where):
    with opened(where, 60.0) as made:
        yield made


def each(action, count=3):
    """The results or errors of `action(rank)`, in threads."""
    found = [None] * count

    def run(rank):
        try:
            found[rank] = action(rank)
        except Exception as error:
            found[rank] = error

    threads = [threading.Thread(target=run, args=(rank,)) for rank in range(count)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(100)
    return found


def test_a_value_reaches_all(stores):
    def action(rank):
        if rank == 1:
            stores[rank].put("nccl", bytes(range(128)))
        return stores[rank].get("nccl")

    assert each(action) == [bytes(range(128))] * 3


def test_ranks_that_agree(stores):
    assert each(lambda r: agree(stores[r], r, 3, {"program": "d", "ranks": 3})) == [None] * 3


def test_ranks_that_differ_are_named_on_all(stores):
    found = each(lambda r: agree(stores[r], r, 3, {"program": "d" if r < 2 else "e"}))
    assert {str(error) for error in found} == {"ranks 0 and 2 differ in program: d and e"}
    assert all(isinstance(error, RankError) for error in found)


def test_a_rank_that_failed_tells_all(stores):
    def action(rank):
        facts = {"error": "no GPU here"} if rank == 1 else {"program": "d"}
        return agree(stores[rank], rank, 3, facts)

    assert {str(error) for error in each(action)} == {"rank 1: no GPU here"}


def test_a_rank_that_does_not_come_is_named(where, times):
    def action(rank):
        return agree(stores[rank], rank, 3, {}) if rank < 2 else None

    with opened(where, float(times)) as stores:
        first, second, _ = each(action)
    assert str(first) == f"rank 2 has not come within {times} s"
    assert str(second).startswith("rank 0 has")


def test_a_port_that_is_taken_is_told():
    with socket.create_server(("", 0)) as listener:
        port = listener.getsockname()[1]
        with pytest.raises(RankError, match=f"^rank 0 cannot listen at port {port}"):
            TcpStore("127.0.0.1", port, TOKEN, serve=True, seconds=0.2)


def test_a_server_that_is_not_there_is_told():
    port = free_port()
    with pytest.raises(RankError, match=f"^rank 0 does not listen at 127.0.0.1:{port} "):
        TcpStore("127.0.0.1", port, TOKEN, serve=False, seconds=0.2)


def test_a_server_that_ends_is_told(times):
    port = free_port()
    server = TcpStore("127.0.0.1", port, TOKEN, serve=True, seconds=60)
    client = TcpStore("127.0.0.1", port, TOKEN, serve=False, seconds=60)
    threading.Timer(0.2 * times, server.close).start()
    with pytest.raises(RankError, match="rank 0 has ended before all ranks had met"):
        client.get("nccl")
    client.close()


@pytest.mark.parametrize("where", ["", "http://x:1", "tcp://x", "file:", "tcp://x:port"])
def test_a_store_that_is_none_is_refused(where):
    with pytest.raises(MeshweaveError, match="tcp://HOST:PORT or file:///FOLDER is right"):
        open_store(JobRank(0, 2, 0, where))


def test_one_rank_needs_no_store():
    store = open_store(JobRank(0, 1, 0))
    store.put("a", b"b")
    assert isinstance(store, MemoryStore) and store.get("a") == b"b"


def test_a_file_is_seen_whole(tmp_path):
    store = FileStore(str(tmp_path / "new" / "folder"), seconds=60)
    store.put("a", b"x" * 1000)
    assert store.get("a") == b"x" * 1000
    assert [path.name for path in (tmp_path / "new" / "folder").iterdir()] == ["a"]
    assert (tmp_path / "new" / "folder").stat().st_mode & 0o777 == 0o700
    with pytest.raises(RankError, match="folder: a is there already: each job needs a new folder"):
        store.put("a", b"other")
    assert store.get("a") == b"x" * 1000
