"""Exchange values between the ranks of a job through a server in rank 0's process, which asks for the job's token.

Rank and server prove to each other that they know the token, by HMAC of what each has drawn at random; the token itself
never travels. What follows is neither encrypted nor signed: this keeps strangers out of a job, not those who can change
what a network carries.
"""

from __future__ import annotations

import contextlib
import hmac
import os
import re
import secrets
import socket
import threading
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from meshweave.errors import MeshweaveError, RankError
from meshweave.runtime.flight.diagnosis import named
from meshweave.runtime.processes.wire import receive, send

STORE_SECONDS = 60.0  # how long a rank waits for a value of another
MESSAGE_SECONDS = (
    5.0  # in which a message has come that has begun, or a stranger has shown the token
)
TOGETHER_SECONDS = 0.1  # within which it is not known whose link has closed first
MOST_STRANGERS = 64  # links that have not shown the token: of more, the oldest is closed
MOST_KEYS = 1 << 16
MOST_KEY = 64  # characters
MOST_VALUE = 1 << 16  # bytes
MOST_BYTES = 1 << 26  # of all values
_MOST_TEXT = 1 << 12  # bytes of a message beside its value
_POLL = 0.01
_SAME = "all ranks of a job need the same MESHWEAVE_TOKEN, or the same file"


def token_file() -> Path:
    """Return the file that holds the account's token."""
    folder = os.environ.get("XDG_CONFIG_HOME") or Path.home() / ".config"
    return Path(folder, "meshweave", "token")


def account_token() -> bytes:
    """Return the token of this account, which is made when there is none: ranks whose hosts share a home share it.

    Raises MeshweaveError when the file cannot be read or made, or when others may read or write it.
    """
    path = token_file()
    try:
        if not path.exists():
            path.parent.mkdir(0o700, parents=True, exist_ok=True)
            part = path.with_name(f".token.{socket.gethostname()}.{os.getpid()}")
            with open(os.open(part, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w") as file:
                file.write(secrets.token_hex(32))
            with contextlib.suppress(FileExistsError):  # of another rank, which was first
                os.link(part, path)
            part.unlink()
        with open(path, "rb") as file:
            status, token = os.fstat(file.fileno()), file.read(1 << 12).strip()
    except OSError as error:
        raise MeshweaveError(
            f"{path}: {error.strerror}: set MESHWEAVE_TOKEN to a secret of this job, the same for all ranks"
        ) from None
    if status.st_mode & 0o077 or len(token) < 16:
        raise MeshweaveError(
            f"{path}: a token of 16 characters or more that only its owner may read is right (chmod 600)"
        )
    return token


def late(key: str, seconds: float) -> RankError:
    """Return the error of a value that has not come."""
    found = re.fullmatch(r"(?:facts|host)(\d+)", key)
    if found:
        return RankError(f"rank {found[1]} has not come within {seconds:g} s")
    return RankError(f"rank 0 has not said {key} within {seconds:g} s")


def _proof(token: bytes, who: str, theirs: str, own: str) -> str:
    """Return what only `who` knows the token can say. theirs, own: what was drawn at random by each side."""
    return hmac.new(token, f"{who} {theirs} {own}".encode(), "sha256").hexdigest()


class TcpStore:
    """Exchange values through the server."""

    def __init__(
        self, host: str, port: int, token: bytes, serve: bool, seconds: float = STORE_SECONDS
    ) -> None:
        """Connect.

        port: 0 for any free one, of a server. serve: be the server too, for this host alone where `host` is a loopback
        address.

        Raises RankError when the port is taken, no server listens in time, or the other side has another token.
        """
        self._seconds = seconds
        self._server = _StoreServer(host, port, token) if serve else None
        self.port = port if self._server is None else self._server.port
        self._where = f"{host}:{self.port}"
        try:
            self._link = self._connect("127.0.0.1" if serve else host, self.port, token)
        except BaseException:
            self.close()
            raise

    def _connect(self, host: str, port: int, token: bytes) -> socket.socket:
        end = time.monotonic() + self._seconds
        while True:
            try:
                link = socket.create_connection((host, port), timeout=self._seconds)
                try:
                    self._introduce(link, token)
                    return link
                except BaseException:
                    link.close()
                    raise
            except (OSError, EOFError, ValueError) as error:
                if time.monotonic() > end:
                    how = getattr(error, "strerror", None) or error
                    raise RankError(f"rank 0 does not listen at {self._where} ({how})") from None
                time.sleep(_POLL)

    def _introduce(self, link: socket.socket, token: bytes) -> None:
        """Show that this rank knows the token; see that the server does."""
        own = secrets.token_hex(16)
        theirs = str(_message(link)[0].get("nonce"))
        send(link, {"nonce": own, "proof": _proof(token, "rank", theirs, own)})
        answer = str(_message(link)[0].get("proof", ""))
        if not hmac.compare_digest(answer.encode(), _proof(token, "store", own, theirs).encode()):
            raise RankError(
                f"the token of rank 0 at {self._where} is another: {_SAME} {token_file()}"
            )

    def put(self, key: str, value: bytes) -> None:
        """Do as JobStore says."""
        self._asked({"put": key}, value)

    def get(self, key: str) -> bytes:
        """Do as JobStore says."""
        try:
            return self._asked({"get": key})
        except TimeoutError:
            raise late(key, self._seconds) from None

    def _asked(self, message: dict[str, Any], value: bytes = b"") -> bytes:
        try:
            self._link.settimeout(self._seconds)
            send(self._link, message, value)
            answer, value = _message(self._link)
        except TimeoutError:
            raise
        except (OSError, EOFError, ValueError):
            raise RankError("rank 0 has ended before all ranks had met") from None
        if "error" in answer:
            raise RankError(str(answer["error"]))
        return value

    def watched(self, rank: int, token: bytes) -> socket.socket:
        """Return a link of its own, by which the server knows that this rank lives, and tells it of the others.

        What the rank says on it (`{"left": ..}`, `{"end": line}`, `{"done": ..}`) comes to all others, with its number
        as `"rank"`. When it closes without a word of `left` or `end`, the others are told that.
        """
        host = "127.0.0.1" if self._server is not None else self._where.rpartition(":")[0]
        link = self._connect(host, self.port, token)
        link.settimeout(None)
        send(link, {"live": rank})
        return link

    def close(self) -> None:
        """Do as JobStore says. Rank 0 closes last: the others must have got what they asked for."""
        if hasattr(self, "_link"):
            self._link.close()
        if self._server is not None:
            self._server.close()


class _StoreServer:
    """Hold the values, and answer each link from a thread of its own."""

    def __init__(self, host: str, port: int, token: bytes) -> None:
        self._token = token
        self._values: dict[str, bytes] = {}
        self._strangers: list[socket.socket] = []  # the oldest first
        self._living: dict[int, socket.socket] = {}  # the links of ranks that are watched
        self._died: list[int] = []  # in the order in which their links have closed
        self._said: list[dict[str, Any]] = []  # by them, for those that come later
        self._changed = threading.Condition()
        self._closed = False
        try:
            self._listener = socket.create_server((_address(host), port), reuse_port=False)
        except OSError as error:
            raise RankError(
                f"rank 0 cannot listen at port {port} ({error.strerror}): set MESHWEAVE_STORE to "
                "another"
            ) from None
        self.port = int(self._listener.getsockname()[1])
        threading.Thread(target=self._accept, name="meshweave-store", daemon=True).start()

    def _accept(self) -> None:
        while True:
            try:
                link, _ = self._listener.accept()
            except OSError:
                return
            with self._changed:
                self._strangers.append(link)
                if len(self._strangers) > MOST_STRANGERS:
                    with contextlib.suppress(OSError):
                        self._strangers.pop(0).shutdown(socket.SHUT_RDWR)
            threading.Thread(target=self._answer, args=(link,), daemon=True).start()

    def _answer(self, link: socket.socket) -> None:
        with link, contextlib.suppress(OSError, EOFError, ValueError):
            try:
                known = self._knows(link)
            finally:
                with self._changed, contextlib.suppress(ValueError):
                    self._strangers.remove(link)
            while known:
                link.settimeout(None)
                link.recv(1, socket.MSG_PEEK)  # a rank may take its time until it asks
                link.settimeout(MESSAGE_SECONDS)
                message, value = _message(link)
                if "live" in message:
                    self._watch(link, int(message["live"]))
                    return
                send(link, *self._reply(message, value))

    def _watch(self, link: socket.socket, rank: int) -> None:
        """Pass on what a rank says, until its link closes; say so if it has not left before."""
        link.settimeout(None)
        with self._changed:
            self._living[rank] = link
            for said in self._said:
                send(link, said)
        known = False
        try:
            while True:
                message, _ = _message(link)
                known = known or bool({"left", "end"} & set(message))
                self._tell({**message, "rank": rank})
        except (OSError, EOFError, ValueError):
            with self._changed:
                self._living.pop(rank, None)
                if not known:
                    self._died.append(rank)
                first = not known and len(self._died) == 1
            if first and not self._closed:
                time.sleep(TOGETHER_SECONDS)
                self._tell({"end": _died(sorted(self._died)), "rank": rank})

    def _tell(self, message: dict[str, Any]) -> None:
        """Tell all ranks that are watched, those that come later too."""
        with self._changed:
            self._said.append(message)
            for _, link in sorted(self._living.items(), reverse=True):
                with contextlib.suppress(OSError):  # rank 0 last: this server may end with it
                    send(link, message)

    def _knows(self, link: socket.socket) -> bool:
        """Tell whether a stranger knows the token; show that this server does."""
        link.settimeout(MESSAGE_SECONDS)
        own = secrets.token_hex(16)
        send(link, {"nonce": own})
        hello, _ = _message(link)
        theirs, proof = str(hello.get("nonce")), str(hello.get("proof"))
        known = hmac.compare_digest(
            proof.encode(), _proof(self._token, "rank", own, theirs).encode()
        )
        answer = {"proof": _proof(self._token, "store", theirs, own)} if known else {}
        send(link, answer)
        return known

    def _reply(self, message: dict[str, Any], value: bytes) -> tuple[dict[str, Any], bytes]:
        with self._changed:
            if "put" in message:
                if problem := self._problem(message["put"], value):
                    return {"error": f"the store refuses {message['put']!r:.80}: {problem}"}, b""
                self._values[message["put"]] = value
                self._changed.notify_all()
                return {}, b""
            key = str(message.get("get"))
            self._changed.wait_for(lambda: self._closed or key in self._values)
            if self._closed:
                raise EOFError
            return {}, self._values[key]

    def _problem(self, key: object, value: bytes) -> str:
        """Say why a value cannot be put; "" when it can."""
        if not isinstance(key, str) or not 0 < len(key) <= MOST_KEY:
            return f"a key is text of at most {MOST_KEY} characters"
        if key in self._values:
            return "a value is put once"
        if len(self._values) >= MOST_KEYS:
            return f"it holds {MOST_KEYS} values already"
        total = sum(map(len, self._values.values())) + len(value)
        return f"its values would be of {total} bytes, at most {MOST_BYTES}" if total > MOST_BYTES else ""  # fmt: skip

    def close(self) -> None:
        with self._changed:
            self._closed = True
            self._changed.notify_all()
        with contextlib.suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()


def _died(ranks: Sequence[int]) -> str:
    """Say which ranks have died: of several the first, and those that a launcher has ended for it."""
    return f"{named(ranks)} {'has' if len(ranks) == 1 else 'have'} died"


def _address(host: str) -> str:
    """Return the address at which a server listens that others know as `host`: loopback alone, or all."""
    with contextlib.suppress(OSError):
        if socket.gethostbyname(host).startswith("127."):
            return "127.0.0.1"
    return ""


def _message(link: socket.socket) -> tuple[dict[str, Any], bytes]:
    """Receive a message of bounded size. Raises ValueError for what is none."""
    message, value, _ = receive(link, most=(_MOST_TEXT, MOST_VALUE))
    if not isinstance(message, dict):
        raise ValueError("a message is a JSON object")
    return message, value
