"""Run a command in a child process, so that even a crash of native code ends in a clear line.

MLIR's parser and passes are C++ without assertions: some malformed programs end the process instead
of giving an error. The child is forked before anything heavy is loaded, which costs about a
millisecond; the parent only waits, hands signals on and says what the child was doing when it died.
"""

import ctypes
import errno
import mmap
import os
import resource
import signal
import sys
from collections.abc import Callable
from types import FrameType

from meshweave.tools.start import interrupted

_STAGE_BYTES = 512
_PR_SET_PDEATHSIG = 1
_FORWARDED = (signal.SIGTERM, signal.SIGHUP, signal.SIGINT)
GRACE = 4  # seconds that a command which was asked to end gets
_FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EIO)  # of disks, which are the user's
_CRASHES = (signal.SIGSEGV, signal.SIGABRT, signal.SIGBUS, signal.SIGFPE, signal.SIGILL)

Stage = Callable[[str], None]
"""Called with what is done next, "reading a.mlir"; the last one is named when the process dies."""


def silent(doing: str) -> None:
    """Ignore the stages."""


def guarded(command: Callable[[Stage], int], name: str, grace: int | None = GRACE) -> int:
    """Run `command` in a child process; return its exit status, or 1, with a line, if native code crashed.

    name: of the program, for that line. A signal that ends the parent ends the child. grace: seconds that it then has;
    None: as many as it takes.
    """
    note = mmap.mmap(-1, _STAGE_BYTES)
    sys.stdout.flush()
    sys.stderr.flush()
    # A signal that comes before the parent listens waits until it does.
    mask = signal.pthread_sigmask(signal.SIG_BLOCK, _FORWARDED)
    child = os.fork()
    if child == 0:
        signal.pthread_sigmask(signal.SIG_SETMASK, mask)
        os._exit(_in_child(command, name, note))
    status = _wait(child, mask, grace)
    if os.WIFEXITED(status):
        return os.WEXITSTATUS(status)
    number = signal.Signals(os.WTERMSIG(status))
    if number == signal.SIGINT:
        return interrupted(name)
    if number not in _CRASHES:
        return 128 + number
    doing = note[:].rstrip(b"\0").decode(errors="replace") or "starting"
    print(f"{name}: error: native code crashed ({number.name}) while {doing}", file=sys.stderr)
    return 1


def _in_child(command: Callable[[Stage], int], name: str, note: mmap.mmap) -> int:
    # No orphan is left, whatever ends the parent.
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))

    def stage(doing: str) -> None:
        note[:] = doing.encode()[:_STAGE_BYTES].ljust(_STAGE_BYTES, b"\0")

    if signal.getsignal(signal.SIGINT) is signal.default_int_handler:
        signal.signal(signal.SIGINT, _interrupt)
    status = 1
    try:
        status = _status(lambda: command(stage))
        sys.stdout.flush()
    except BrokenPipeError:  # the reader of our output has gone, as `head` does
        status = 0
    except KeyboardInterrupt:
        status = interrupted(name)
    except BaseException as error:
        if isinstance(error, OSError) and error.errno in _FULL:
            print(f"{name}: error: cannot write: {error.strerror}", file=sys.stderr)
            status = 1
        else:  # a defect of ours keeps its traceback
            sys.excepthook(*sys.exc_info())
    sys.stderr.flush()
    return status


def _interrupt(number: int, _: FrameType | None) -> None:
    """Raise KeyboardInterrupt once: a second Ctrl-C must not break off the end that the first one asked for."""
    signal.signal(number, signal.SIG_IGN)
    raise KeyboardInterrupt


def _status(command: Callable[[], int]) -> int:
    """Run a command; return its exit status, also where it leaves by `sys.exit`."""
    try:
        return command()
    except SystemExit as leave:
        return leave.code if isinstance(leave.code, int) else int(leave.code is not None)


def _wait(child: int, mask: set[int | signal.Signals], grace: int | None) -> int:
    """Wait for `child`, hand signals on to it meanwhile, and return its wait status.

    Native code ignores signals: a child that does not end within `grace` seconds is killed, and one that crashes on a
    signal counts as ended by it. mask: of signals, from now on.
    """
    asked: list[int] = []

    def end(number: int, _: FrameType | None) -> None:
        if not asked and grace is not None:
            signal.alarm(grace)
        asked.append(number)
        if number != signal.SIGINT:  # Ctrl-C reaches the whole group, so the child has it already
            os.kill(child, number)

    def kill(*_: object) -> None:
        os.kill(child, signal.SIGKILL)

    before = {s: signal.signal(s, end) for s in _FORWARDED}
    before[signal.SIGALRM] = signal.signal(signal.SIGALRM, kill)
    signal.pthread_sigmask(signal.SIG_SETMASK, mask)
    try:
        status = os.waitpid(child, 0)[1]
        ended = os.WIFSIGNALED(status) and os.WTERMSIG(status) in (signal.SIGKILL, *_CRASHES)
        # A signal's number is the status of who it ended.
        return asked[0] if asked and ended else status
    finally:
        signal.alarm(0)
        for number, handler in before.items():
            # Whoever was asked to end ends now: asking again must not break that off.
            signal.signal(number, signal.SIG_IGN if asked and number in _FORWARDED else handler)
