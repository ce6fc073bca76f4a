"""The server where ranks of a job meet: it answers who knows the token, and takes no more than it says."""

from __future__ import annotations

import os
import socket
import struct
import threading
import time
from pathlib import Path

import pytest
from ports import free_port
from runtime.test_bootstrap import TOKEN

from meshweave.errors import MeshweaveError, RankError
from meshweave.runtime.processes import store as store_module
from meshweave.runtime.processes.bootstrap import JobRank, open_store
from meshweave.runtime.processes.store import MOST_STRANGERS, TcpStore, account_token
from meshweave.runtime.processes.wire import receive, send


@pytest.fixture
def server():
    """A port, and the store of rank 0 there."""
    port = free_port()
    made = TcpStore("127.0.0.1", port, TOKEN, serve=True, seconds=60)
    yield port, made
    made.close()


def stranger(port):
    link = socket.create_connection(("127.0.0.1", port), timeout=60)
    return link, receive(link)[0]["nonce"]


def is_closed(link):
    try:
        return link.recv(1 << 16) == b""
    except ConnectionResetError:
        return True


def test_a_rank_with_another_token_is_refused_and_told(server):
    port, _ = server
    with pytest.raises(
        RankError, match=r"the token of rank 0 at 127.0.0.1:.* is another: all ranks"
    ):
        TcpStore("127.0.0.1", port, b"some other secret", serve=False, seconds=60)


def test_a_server_that_does_not_know_the_token_is_not_believed():
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]

        def play() -> None:
            link, _ = listener.accept()
            with link:
                send(link, {"nonce": "0"})
                hello, _, _ = receive(link)
                send(link, {"proof": hello["proof"]})  # the rank's own, sent back

        threading.Thread(target=play, daemon=True).start()
        with pytest.raises(RankError, match="is another"):
            TcpStore("127.0.0.1", port, TOKEN, serve=False, seconds=60)


@pytest.mark.parametrize(
    "said",
    [
        b"GET / HTTP/1.1\r\n\r\n" * 4,
        struct.pack("<QQI", 1 << 40, 0, 0),
        struct.pack("<QQI", 2, 1 << 40, 0) + b"{}",
        struct.pack("<QQI", 2, 0, 0) + b"[]",
        struct.pack("<QQI", 2, 0, 0) + b"\xff\xff",
        struct.pack("<QQI", 4, 0, 0) + b"null",
        struct.pack("<QQI", 11, 0, 0) + b'{"put":"a"}',
        struct.pack("<QQI", 27, 0, 0) + b'{"nonce":"0","proof":"\xc3\xa9\xc3"}'[:27],
    ],
)
def test_who_shows_no_proof_gets_and_puts_nothing(server, said):
    port, store = server
    link, _ = stranger(port)
    link.sendall(said)
    if not is_closed(link):  # an answer without a proof
        assert is_closed(link)
    store.put("a", b"b")
    assert store.get("a") == b"b"


def test_a_proof_is_good_for_one_link(server):
    port, _ = server
    old = store_module._proof(TOKEN, "rank", stranger(port)[1], "0")
    link, _ = stranger(port)
    send(link, {"nonce": "0", "proof": old})
    assert receive(link)[0] == {} and is_closed(link)


def test_silent_strangers_are_closed_and_keep_nobody_out(server):
    port, store = server
    links = [stranger(port)[0] for _ in range(MOST_STRANGERS + 3)]
    assert all(is_closed(link) for link in links[:3])
    rank = TcpStore("127.0.0.1", port, TOKEN, serve=False, seconds=60)
    store.put("a", b"b")
    assert rank.get("a") == b"b"
    rank.close()


def test_a_stranger_has_little_time(monkeypatch, times):
    monkeypatch.setattr(store_module, "MESSAGE_SECONDS", 0.1 * times)
    port = free_port()
    store = TcpStore("127.0.0.1", port, TOKEN, serve=True, seconds=60)
    rank = TcpStore("127.0.0.1", port, TOKEN, serve=False, seconds=60)
    link, _ = stranger(port)
    assert is_closed(link)
    time.sleep(0.2 * times)  # longer than a message may take
    rank.put("a", b"")  # one that has shown its token may be silent
    assert store.get("a") == b""
    rank._link.sendall(b"\x05")  # but not within a message
    assert is_closed(rank._link)
    store.close()


def test_a_value_is_put_once_and_not_too_large(server, monkeypatch):
    _, store = server
    store.put("a", b"first")
    for key, value, says in (
        ("a", b"second", "refuses 'a': a value is put once"),
        ("", b"", "a key is text of at most 64 characters"),
        ("k" * 65, b"", "a key is text of at most 64 characters"),
    ):
        with pytest.raises(RankError, match=says):
            store.put(key, value)
    monkeypatch.setattr(store_module, "MOST_BYTES", 9)
    with pytest.raises(RankError, match="its values would be of 10 bytes, at most 9"):
        store.put("b", bytes(5))
    monkeypatch.setattr(store_module, "MOST_KEYS", 1)
    with pytest.raises(RankError, match="it holds 1 values already"):
        store.put("b", b"")
    assert store.get("a") == b"first"
    with pytest.raises(RankError, match="rank 0 has ended"):  # the link is closed
        store.put("c", bytes(store_module.MOST_VALUE + 1))


def test_an_account_has_one_token_that_it_alone_can_read(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    token = account_token()
    file = tmp_path / "config" / "meshweave" / "token"
    assert len(token) == 64 and account_token() == token == file.read_bytes()
    assert file.stat().st_mode & 0o777 == 0o600 and os.listdir(file.parent) == ["token"]
    file.chmod(0o640)
    with pytest.raises(MeshweaveError, match=r"token: a token of 16 .* only its owner may read"):
        account_token()
    file.chmod(0o600)
    file.write_text("short")
    with pytest.raises(MeshweaveError, match="a token of 16 characters or more"):
        account_token()
    monkeypatch.setenv("XDG_CONFIG_HOME", "/proc/none")
    with pytest.raises(
        MeshweaveError, match=r"/proc/none/meshweave/token: .*: set MESHWEAVE_TOKEN to"
    ):
        account_token()


def test_ranks_of_an_account_meet_without_being_told_a_token(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))
    where = f"tcp://127.0.0.1:{free_port()}"
    stores = [open_store(JobRank(rank, 2, rank, where), 60) for rank in range(2)]
    stores[1].put("a", b"b")
    assert stores[0].get("a") == b"b"
    assert "secret" not in repr(JobRank(0, 2, 0, where, "secret"))
    for store in reversed(stores):
        store.close()
