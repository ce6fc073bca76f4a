"""Dumps on disk: read as they were written, refused in one line when damaged, and put side by side over hosts."""

from __future__ import annotations

import json
import os
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from commands import meshweave
from depth import sampled
from hypothesis import given
from hypothesis import strategies as st

from meshweave.bundle import OpInfo
from meshweave.errors import MeshweaveError
from meshweave.runtime.flight.dump import Dump, read_dumps, write_dump
from meshweave.runtime.flight.faults import Fault, faults
from meshweave.runtime.flight.records import CollectiveRecord, RankRecord

OPS = tuple(OpInfo(n, f"all_reduce[x] f32 {n}", f"a.mlir:{n}:1", 64 * n) for n in (1, 2, 3))
NRANKS = 4


def rank(number: int, ops: list[int], within: bool = False, **more: Any) -> RankRecord:
    """A rank that has started these ops, one after the other; its ring holds the last three."""
    entries = [
        CollectiveRecord(n, op, "", not within or n < len(ops)) for n, op in enumerate(ops, 1)
    ]
    state = more.pop("state", "running")
    op = ops[-1] if ops else 0
    return RankRecord(
        number, state, op, within, len(ops), 1, 100 + number, more.pop("process", "alive"),
        entries=tuple(entries[-3:]), **more,
    )  # fmt: skip


def elsewhere(number: int) -> RankRecord:
    return RankRecord(number, "elsewhere")


def dump(*ranks: RankRecord, host: str = "one", **more: Any) -> Dump:
    made = Dump("abc", "timeout", "no progress", host, 5, "f00", "mpi", f"x={NRANKS}", OPS, ranks)
    return replace(made, **more)


def fault(*dumps: Dump) -> Fault:
    (found,) = faults(dumps)
    return found


STUCK = dump(*(rank(n, [1, 2, 3], within=True) for n in (0, 1, 2)), rank(3, [1, 2]))

words = st.text(max_size=20)
counts = st.integers(0, 1 << 40)
entries = st.tuples(counts, st.sampled_from(["", "start", "wait"]), st.booleans())


def numbered(made: RankRecord, told: list[tuple[int, str, bool]]) -> RankRecord:
    """A record with these collectives (op, half, ended) as its last."""
    first = made.count + 1
    given = tuple(CollectiveRecord(first + k, *each) for k, each in enumerate(told))
    return replace(made, count=made.count + len(given), entries=given)


bare = st.builds(
    RankRecord,
    rank=st.just(0),
    state=st.sampled_from(["idle", "running", "returned", "elsewhere", "device"]),
    op=counts,
    within=st.booleans(),
    count=counts,
    calls=counts,
    pid=counts,
    process=st.sampled_from(["alive", "stopped", "dead", "unknown"]),
    ending=words,
    ended=counts,
)
records = st.builds(numbered, bare, st.lists(entries, max_size=3))


@given(records, words, words, counts, st.lists(st.builds(OpInfo, counts, words, words, counts)))
def test_a_dump_is_read_as_it_was_written(
    record: RankRecord, line: str, host: str, written: int, ops: list[OpInfo]
) -> None:
    made = Dump("i", "death", line, host, written, "p", "mpi", "x=1", tuple(ops), (record,))
    assert Dump.from_json(made.to_json(), "name") == made


def test_a_file_or_a_folder_is_read(tmp_path: Path) -> None:
    path = write_dump(STUCK, str(tmp_path))
    assert read_dumps([path]) == read_dumps([str(tmp_path)]) == ([STUCK], [])


def test_the_name_of_a_dump_may_be_taken_by_a_link(tmp_path: Path) -> None:
    (tmp_path / "precious").write_text("kept")
    path = Path(write_dump(STUCK, str(tmp_path)))
    path.unlink()
    path.symlink_to(tmp_path / "precious")
    assert write_dump(STUCK, str(tmp_path)) == str(path)
    assert (tmp_path / "precious").read_text() == "kept" and not path.is_symlink()


VALUE = json.loads(STUCK.to_json())


@sampled(4)
@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("", "not a meshweave flight recorder, or cut short"),
        (STUCK.to_json()[:-40], "not a meshweave flight recorder, or cut short"),
        ("[" * 100_000, "not a meshweave flight recorder, or cut short"),
        ("\xff", "not a meshweave flight recorder"),
        ("[]", "not a meshweave flight recorder"),
        ({"kind": "meshweave array"}, "not a meshweave flight recorder"),
        ({"format": 2}, "format 2, this version reads format 1"),
        ({"mesh": "x=5"}, "damaged: its ranks are not those of mesh (x=5)"),
        ({"mesh": "x=1000000000000"}, "damaged: "),
        ({"mesh": "x=N"}, "damaged: its ranks are not those of mesh"),
        ({"mesh": "x=-"}, "damaged: axis x=-: a size is"),
        ({"written": -1}, "damaged: the dump.written should be a count, is -1"),
        ({"more": 1}, "damaged: the dump has an unknown field 'more'"),
        ({"ranks": [*VALUE["ranks"][:3], VALUE["ranks"][3] | {"state": "asleep"}]}, "unknown state: 'asleep'"),
        ({"ranks": [VALUE["ranks"][0]] * 4}, "damaged: its ranks are not those of mesh (x=4)"),
        ({"written": 1 << 60}, "damaged: it was written at 1152921504606846976 ms, which is no time"),
        ({"ranks": [VALUE["ranks"][0] | {"count": 1 << 60}, *VALUE["ranks"][1:]]}, "of rank 0 are not numbered in"),
        ({"ops": [{}]}, "damaged: the dump.ops[0] has no id"),
    ],
)  # fmt: skip
def test_a_damaged_dump_is_one_line(text: str | dict[str, Any], said: str, tmp_path: Path) -> None:
    path = tmp_path / "flight-x.json"
    path.write_text(text if isinstance(text, str) else json.dumps(VALUE | text), "latin-1")
    done = meshweave("doctor", "--dump", path)
    assert (done.status, done.out) == (1, "")
    assert done.err.startswith(f"meshweave: error: {path}: ") and said in done.err
    assert done.err.count("\n") == 1


def test_what_is_no_regular_file_is_not_waited_for(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "flight-pipe.json")
    done = meshweave("doctor", "--dump", tmp_path, "/dev/zero", tmp_path / "absent")
    assert done.status == 1 and done.err.count("not a regular file of at most 256 MiB") == 2
    assert "absent: cannot be read: No such file or directory" in done.err


def test_a_folder_without_dumps_is_wrong_usage(tmp_path: Path) -> None:
    done = meshweave("doctor", "--dump", tmp_path)
    assert done.status == 2 and "no flight-*.json in this folder" in done.err


def test_what_can_be_read_is_shown_beside_what_cannot(tmp_path: Path) -> None:
    write_dump(STUCK, str(tmp_path))
    (tmp_path / "flight-bad.json").write_text("?")
    done = meshweave("doctor", "--dump", tmp_path)
    assert done.status == 1 and done.err.count("\n") == 1
    assert "verdict: rank 3 computes, after all_reduce[x] f32 2 at a.mlir:2:1" in done.out


def test_the_command_shows_ranks_and_collectives_side_by_side(tmp_path: Path) -> None:
    done = meshweave("doctor", "--dump", write_dump(STUCK, str(tmp_path)))
    assert (done.status, done.err) == (0, "")
    rows = [
        " ".join(line.replace("│", " ").replace("┃", " ").split()) for line in done.out.splitlines()
    ]
    assert "# collective bytes place ranks 0, 1 and 2 rank 3" in rows
    assert "2 all_reduce[x] f32 2 128 a.mlir:2:1 ended ended" in rows
    assert "3 all_reduce[x] f32 3 192 a.mlir:3:1 started -" in rows
    assert "3 one 103, alive 1 2 computes, after all_reduce[x] f32 2 at a.mlir:2:1" in rows


def test_json_names_the_stragglers(tmp_path: Path) -> None:
    done = meshweave("doctor", "--json", "--dump", write_dump(STUCK, str(tmp_path)))
    (found,) = json.loads(done.out)["faults"]
    assert found["stragglers"] == [3] and found["incident"] == "abc"
    assert [each["host"] for each in found["ranks"]] == ["one"] * 4


def test_a_file_cannot_give_a_terminal_orders(tmp_path: Path) -> None:
    text = STUCK.to_json().replace("no progress", "no \\u001b[2J progress")
    (tmp_path / "flight-x.json").write_text(text)
    done = meshweave("doctor", "--dump", tmp_path)
    assert done.status == 0 and "no ?[2J progress" in done.out and "\x1b" not in done.out


def test_ranks_that_are_far_apart_take_no_time(tmp_path: Path) -> None:
    far = replace(rank(0, [1]), count=1 << 61, entries=(CollectiveRecord(1 << 61, 1, "", True),))
    made = dump(far, *(rank(n, [1], True) for n in (1, 2, 3)))
    done = meshweave("doctor", "--dump", write_dump(made, str(tmp_path)))
    assert done.status == 0 and "verdict: rank 0 computes" in done.out


def test_hosts_are_put_together() -> None:
    one = dump(rank(0, [1], True), rank(1, [1], True), elsewhere(2), elsewhere(3))
    two = dump(elsewhere(0), elsewhere(1), rank(2, [1], True), rank(3, []), host="two")
    found = fault(one, two)
    assert found.hosts == ("one", "one", "two", "two")
    assert [each.rank for each in found.stragglers] == [3]
    assert "ranks 2 and 3 are on another host" in fault(one).verdict()


def test_the_rank_that_died_first_is_named_and_not_those_that_the_launcher_ended() -> None:
    killed = {"process": "dead", "ending": "Killed (signal 9)"}
    one = dump(
        rank(0, [1], True), rank(1, [1], True, ended=1003, **killed), elsewhere(2), elsewhere(3)
    )
    two = dump(
        elsewhere(0), elsewhere(1), rank(2, [1], True, ended=1001, **killed), rank(3, [1], True), host="two",
    )  # fmt: skip
    assert fault(one, two).verdict() == (
        "rank 2 died (Killed (signal 9)), last seen: in all_reduce[x] f32 1 at a.mlir:1:1; "
        "ranks 0, 1 and 3 are in all_reduce[x] f32 1 at a.mlir:1:1"
    )


def test_ranks_that_went_different_ways_are_named() -> None:
    made = dump(rank(0, [1, 2]), rank(1, [1, 2]), rank(2, [1, 3], True), rank(3, [1, 2], True))
    assert fault(made).verdict() == (
        "the ranks went different ways at collective 2: ranks 0, 1 and 3 started all_reduce[x] f32 2 at "
        "a.mlir:2:1; rank 2 started all_reduce[x] f32 3 at a.mlir:3:1"
    )


def test_faults_of_different_jobs_are_apart() -> None:
    other = replace(STUCK, incident="def", written=4)
    assert [each.dumps for each in faults([STUCK, other])] == [(other,), (STUCK,)]


def test_entries_are_found_by_their_number_though_rings_begin_elsewhere() -> None:
    found = fault(dump(rank(0, [1, 2, 3, 1, 2]), rank(1, [1, 2, 3]), rank(2, []), rank(3, [1])))
    assert found.sequences() == [1, 2, 3, 4, 5]
    assert {n: sorted(found.entries(n)) for n in found.sequences()} == {
        1: [1, 3], 2: [1], 3: [0, 1], 4: [0], 5: [0],
    }  # fmt: skip


def test_an_error_of_a_symbolic_mesh_is_no_traceback() -> None:
    with pytest.raises(MeshweaveError):
        dump(rank(0, []), mesh="x=N")
