"""A job on two hosts: name spaces of networks, joined by a cable, with a shell for each that MPI reaches as by ssh.

Only as root, where `ip` and `unshare` are; what is not there is skipped.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from runtime.job.test_job import HERE, Ended, environment

from meshweave.runtime.mpi.engine import mpiexec

TOKEN = "a secret of this test"


class Hosts:
    """Two hosts, by number 1 and 2: their addresses, and what runs a command there."""

    def __init__(self, folder: Path) -> None:
        self._names = [f"mw{os.getpid()}h{number}" for number in (1, 2)]
        self.network = f"10.213.{os.getpid() % 250}"
        self.shell = folder / "shell"
        self.shell.write_text(
            '#!/bin/sh\nwhile [ "${1#-}" != "$1" ]; do shift; done\nnumber=${1##*.}; shift\n'
            f"exec ip netns exec {self._names[0][:-1]}$number unshare -u "
            f'sh -c "hostname {self._names[0][:-1]}$number; $*"\n'
        )
        self.shell.chmod(0o755)

    def begin(self) -> None:
        one, two = self._names
        for name in self._names:
            self._ip("netns", "add", name)
        link = ("link", "add", one, "netns", one, "type", "veth", "peer", "name", two)
        self._ip(*link, "netns", two)
        for number, name in enumerate(self._names, 1):
            self._ip("-n", name, "addr", "add", f"{self.network}.{number}/24", "dev", name)
            self._ip("-n", name, "link", "set", name, "up")
            self._ip("-n", name, "link", "set", "lo", "up")
        end = time.monotonic() + 10
        while not all(map(self._carries, self._names)):  # the kernel says so up to a second later
            if time.monotonic() > end:
                pytest.skip("two hosts: the cable between them carries nothing")
            time.sleep(0.05)

    def _carries(self, name: str) -> bool:
        command = ["ip", "-n", name, "link", "show", name]
        return (
            " state UP "
            in subprocess.run(command, capture_output=True, text=True, timeout=20).stdout
        )

    def end(self) -> None:
        for name in self._names:
            subprocess.run(["ip", "netns", "delete", name], capture_output=True, timeout=20)

    def _ip(self, *arguments: str) -> None:
        subprocess.run(["ip", *arguments], check=True, capture_output=True, timeout=20)

    def by_variables(self, places: tuple[int, ...], *arguments: str) -> Ended:
        """Start a rank on each of these hosts."""
        commands = []
        for rank, number in enumerate(places):
            env = environment(
                MESHWEAVE_RANK=str(rank), MESHWEAVE_SIZE=str(len(places)), MESHWEAVE_TOKEN=TOKEN,
                MESHWEAVE_STORE=f"tcp://{self.network}.1:24311", UCX_TLS="tcp,self",
            )  # fmt: skip
            command = [str(self.shell), f"{self.network}.{number}", sys.executable, *arguments]
            commands.append((command, env))
        return Ended(commands, 60)

    def by_mpiexec(self, *arguments: str) -> Ended:
        """Start two ranks on each host by MPICH's mpiexec."""
        hosts = f"{self.network}.1,{self.network}.2"
        command = [
            *(str(self.shell), f"{self.network}.1", mpiexec(), "-launcher", "ssh"),
            *("-launcher-exec", str(self.shell), "-localhost", f"{self.network}.1"),
            *("-hosts", hosts, "-ppn", "2", "-n", "4", sys.executable, *arguments),
        ]
        return Ended([(command, environment(UCX_TLS="tcp,self"))], 60)


@pytest.fixture(scope="module")
def hosts(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Hosts]:
    if os.geteuid() != 0 or not (shutil.which("ip") and shutil.which("unshare")):
        pytest.skip("two hosts: name spaces of networks need root, ip and unshare")
    made = Hosts(tmp_path_factory.mktemp("hosts"))
    try:
        try:
            made.begin()
        except subprocess.SubprocessError as error:
            pytest.skip(f"two hosts: {error}")
        yield made
    finally:
        made.end()


def test_ranks_on_two_hosts_send_no_more_than_they_must(hosts: Hosts) -> None:
    """Groups on a host send nothing over the network, and those between hosts what one rank of each has to."""
    ended = hosts.by_variables((1, 1, 2, 2), str(HERE / "crossing.py"))
    assert ended.status == [0] * 4, ended.err
    found = re.findall(r"^(\w+) rank (\d): (\d+)$", "".join(ended.out), re.M)
    brought = {(axes, int(rank)): int(nbytes) for axes, rank, nbytes in found}
    mib, small = 1 << 20, 1 << 16
    for rank in range(4):
        assert brought["b", rank] < small
        assert 2 * mib < brought["a", rank] < 2.2 * mib + small  # two groups, one of each rank
        assert mib < brought["ab", rank] < 1.1 * mib + small
    assert "UserWarning" not in "".join(ended.err)


def test_an_inner_axis_between_hosts_is_told_by_rank_0(hosts: Hosts) -> None:
    ended = hosts.by_variables((1, 2, 1, 2), str(HERE / "crossing.py"), "b")
    assert ended.status == [0] * 4, ended.err
    line = r"UserWarning: mesh \(a=2, b=2\): the ranks along b are on several hosts, those along a on one: number"
    assert [len(re.findall(line, err)) for err in ended.err] == [1, 0, 0, 0]


def test_mpiexec_on_two_hosts_names_a_rank_that_dies_there(hosts: Hosts) -> None:
    ended = hosts.by_mpiexec(str(HERE / "failing.py"), "kill", "3")
    assert ended.status[0] and not ended.left
    assert re.search(
        "^meshweave: (on .*: )?(rank|ranks 2 and) 3 (has |have )?died", ended.err[0], re.M
    ), ended.err
