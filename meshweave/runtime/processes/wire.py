"""Exchange messages over sockets: a JSON object, raw bytes after it and, over a Unix socket, open files beside it."""

from __future__ import annotations

import json
import os
import socket
import struct
from collections.abc import Sequence
from typing import Any

_HEAD = struct.Struct("<QQI")  # bytes of the JSON text, bytes of the payload, files sent along
_MAX_FILES = 4


def send(
    link: socket.socket, message: dict[str, Any], payload: bytes = b"", files: Sequence[int] = ()
) -> None:
    """Send a message. `files` are open file descriptors; the receiver gets its own.

    Raises OSError when the peer is gone.
    """
    send_frame(link, frame(message, len(payload), len(files)), payload, files)


def frame(message: dict[str, Any], payload: int = 0, files: int = 0) -> bytes:
    """Return what precedes a payload of `payload` bytes, with `files` open files beside it."""
    text = json.dumps(message).encode()
    return _HEAD.pack(len(text), payload, files) + text


def send_frame(
    link: socket.socket, data: bytes, payload: bytes = b"", files: Sequence[int] = ()
) -> None:
    """Send what `frame` made: in one piece, so that the receiver wakes once."""
    sent = socket.send_fds(link, [data], list(files)) if files else 0
    if sent < len(data):
        link.sendall(data[sent:])
    if payload:
        link.sendall(payload)


def receive(
    link: socket.socket, most: tuple[int, int] | None = None
) -> tuple[dict[str, Any], bytes, list[int]]:
    """Return the next message, its payload and files.

    most: bytes of the message and of its payload that are taken from a peer that may be anyone.
    Raises EOFError when the peer is gone, OSError when the link fails or more comes than `most`, ValueError when it is
    no JSON.
    """
    head, files, _, _ = socket.recv_fds(link, _HEAD.size, _MAX_FILES)
    try:
        if len(head) < _HEAD.size:
            head += _exactly(link, _HEAD.size - len(head)) if head else b""
        if not head:
            raise EOFError("the peer has closed the link")
        text, payload, count = _HEAD.unpack(head)
        if most is not None and (text > most[0] or payload > most[1]):
            raise OSError(f"a message of {text} and {payload} bytes, at most {most} are taken")
        message = json.loads(_exactly(link, text))
        data = _exactly(link, payload)
        if count != len(files):
            raise OSError(f"{count} files announced, {len(files)} came")
    except BaseException:
        for file in files:
            os.close(file)
        raise
    return message, data, files


def _exactly(link: socket.socket, nbytes: int) -> bytes:
    """Receive this number of bytes. Raises EOFError when the peer closes the link before."""
    data = bytearray(nbytes)
    view = memoryview(data)
    while view:
        got = link.recv_into(view)
        if not got:
            raise EOFError("the peer has closed the link")
        view = view[got:]
    return bytes(data)
