"""Keep the fibers in which threads run: their stacks and records, and the code that switches between them.

That is LLVM IR, too. A thread has a record of words of 64 bits, and so has the machine:

| word | of a thread | of the machine |
| --- | --- | --- |
| 0 | its stack pointer while it rests | that of the caller of `witness.resume` |
| 1 | why it rests: a request, `FINISHED` or a fault | the record of the thread that runs |
| 2, 3 | where its stack begins and ends | branches that are left; the function that threads begin with |
| 4 .. 7 | its number in x, y, z; its lane | parameters; segments of memory, how many |
| 8 .. 16 | 8, 9, 10: line, address, bytes of a fault | block, grid and block size in x, y, z |
| 16 .. | `SLOTS` values of a request | |
"""

from __future__ import annotations

import mmap
from threading import Lock

import numpy as np

MOST_THREADS = 1024
FINISHED, OUTSIDE, ASKEW, ENDLESS, UNDIVIDED = -1, -2, -3, -4, -5
_WORDS = 512
SLOTS = 300
_FIRST_SLOT = 16
_STACK = 1 << 17
SHARED_BYTES = 1 << 18
"""No block has more; aligned so that 18 bits of an address say the place in it."""
_LOW_ADDRESSES = 0x40  # MAP_32BIT: kernels may keep addresses of shared memory in 32 bits


def place_of_slot(number: int) -> int:
    """Return the word of a slot."""
    return _FIRST_SLOT + number


_KEPT = ("rbp", "rbx", "r12", "r13", "r14", "r15")  # what a function of the host must give back
_SWITCH = "\\0A".join(
    [
        *(f"pushq %{name}" for name in _KEPT),
        *("movq %rsp, (%rdi)", "movq %rsi, %rsp"),
        *(f"popq %{name}" for name in reversed(_KEPT)),
        "retq",
    ]
)
RUNTIME = f"""
@witness.machine = external global [32 x i64]
define internal void @witness.switch(ptr %save, ptr %to) naked noinline nounwind {{
  call void asm sideeffect "{_SWITCH}", ""()
  unreachable
}}
define internal void @witness.stop(i64 %why) noinline nounwind {{
  %t = load ptr, ptr getelementptr (i64, ptr @witness.machine, i64 1)
  %p = getelementptr i64, ptr %t, i64 1
  store i64 %why, ptr %p
  %home = load ptr, ptr @witness.machine
  call void @witness.switch(ptr %t, ptr %home)
  ret void
}}
define void @witness.begin() noinline nounwind {{
  %f = load ptr, ptr getelementptr (i64, ptr @witness.machine, i64 3)
  call void %f()
  call void @witness.stop(i64 {FINISHED})
  unreachable
}}
define void @witness.resume(ptr %records, i64 %count) noinline nounwind {{
  br label %loop
loop:
  %k = phi i64 [ 0, %0 ], [ %next, %more ]
  %end = icmp uge i64 %k, %count
  br i1 %end, label %out, label %more
more:
  %place = getelementptr ptr, ptr %records, i64 %k
  %t = load ptr, ptr %place
  store ptr %t, ptr getelementptr (i64, ptr @witness.machine, i64 1)
  %to = load ptr, ptr %t
  call void @witness.switch(ptr @witness.machine, ptr %to)
  %next = add i64 %k, 1
  br label %loop
out:
  ret void
}}
define internal void @witness.tick() noinline nounwind {{
  %left = load i64, ptr getelementptr (i64, ptr @witness.machine, i64 2)
  %less = sub i64 %left, 1
  store i64 %less, ptr getelementptr (i64, ptr @witness.machine, i64 2)
  %none = icmp slt i64 %less, 0
  br i1 %none, label %bad, label %good
bad:
  call void @witness.stop(i64 {ENDLESS})
  unreachable
good:
  ret void
}}
define internal void @witness.divide(i64 %a, i64 %b, i64 %least, i64 %line) noinline nounwind {{
  %zero = icmp eq i64 %b, 0
  %one = icmp eq i64 %b, -1
  %far = icmp eq i64 %a, %least
  %over = and i1 %one, %far
  %bad = or i1 %zero, %over
  br i1 %bad, label %stop, label %good
stop:
  %me = load ptr, ptr getelementptr (i64, ptr @witness.machine, i64 1)
  %m1 = getelementptr i64, ptr %me, i64 8
  store i64 %line, ptr %m1
  call void @witness.stop(i64 {UNDIVIDED})
  unreachable
good:
  ret void
}}
define internal void @witness.touch(ptr %p, i64 %size, i64 %align, i64 %line) noinline nounwind {{
  %a = ptrtoint ptr %p to i64
  %mask = sub i64 %align, 1
  %off = and i64 %a, %mask
  %askew = icmp ne i64 %off, 0
  br i1 %askew, label %bad, label %start
start:
  %last = add i64 %a, %size
  %t = load ptr, ptr getelementptr (i64, ptr @witness.machine, i64 1)
  %lp = getelementptr i64, ptr %t, i64 2
  %low = load i64, ptr %lp
  %hp = getelementptr i64, ptr %t, i64 3
  %high = load i64, ptr %hp
  %s1 = icmp uge i64 %a, %low
  %s2 = icmp ule i64 %last, %high
  %own = and i1 %s1, %s2
  br i1 %own, label %good, label %enter
enter:
  %list = load ptr, ptr getelementptr (i64, ptr @witness.machine, i64 5)
  %count = load i64, ptr getelementptr (i64, ptr @witness.machine, i64 6)
  br label %loop
loop:
  %k = phi i64 [ 0, %enter ], [ %next, %more ]
  %none = icmp uge i64 %k, %count
  br i1 %none, label %bad, label %more
more:
  %two = shl i64 %k, 1
  %bp = getelementptr i64, ptr %list, i64 %two
  %b = load i64, ptr %bp
  %ep = getelementptr i64, ptr %bp, i64 1
  %e = load i64, ptr %ep
  %i1 = icmp uge i64 %a, %b
  %i2 = icmp ule i64 %last, %e
  %in = and i1 %i1, %i2
  %next = add i64 %k, 1
  br i1 %in, label %good, label %loop
bad:
  %why = phi i64 [ {ASKEW}, %0 ], [ {OUTSIDE}, %loop ]
  %me = load ptr, ptr getelementptr (i64, ptr @witness.machine, i64 1)
  %m1 = getelementptr i64, ptr %me, i64 8
  store i64 %line, ptr %m1
  %m2 = getelementptr i64, ptr %me, i64 9
  store i64 %a, ptr %m2
  %m3 = getelementptr i64, ptr %me, i64 10
  store i64 %size, ptr %m3
  call void @witness.stop(i64 %why)
  unreachable
good:
  ret void
}}
"""


class Fibers:
    """Own the memory of a block's threads: records, stacks, shared memory. One block runs at a time in a process."""

    def __init__(self) -> None:
        self.lock = Lock()
        self._held = [_pages(MOST_THREADS * _WORDS * 8), _pages(MOST_THREADS * _STACK)]
        self._held.append(_pages(2 * SHARED_BYTES, _LOW_ADDRESSES))
        self.records = np.frombuffer(self._held[0], np.uint64).reshape(MOST_THREADS, _WORDS)
        self.why = self.records.view(np.int64)[:, 1]
        self.slots = self.records[:, _FIRST_SLOT:]
        stacks = np.frombuffer(self._held[1], np.uint64)
        self._stacks = stacks.reshape(MOST_THREADS, _STACK // 8)
        low = _STACK * np.arange(MOST_THREADS, dtype=np.uint64) + np.uint64(stacks.ctypes.data)
        self.records[:, 2], self.records[:, 3] = low, low + np.uint64(_STACK)
        self.addresses = self.records.ctypes.data + np.arange(
            MOST_THREADS, dtype=np.uint64
        ) * np.uint64(_WORDS * 8)
        room = np.frombuffer(self._held[2], np.uint8)
        start = -room.ctypes.data % SHARED_BYTES
        self.shared = room[start : start + SHARED_BYTES]
        self.machine = np.zeros(32, np.uint64)

    def begin(self, block: tuple[int, int, int], begin: int) -> None:
        """Let a block's threads stand before their first instruction. begin: the address of `witness.begin`."""
        count = int(np.prod(block))
        records = self.records[:count]
        # Six registers and an address to return to; a function is entered 8 bytes off a multiple of 16.
        top = self._stacks[:count, -16:]
        top[:] = 0
        top[:, 6] = begin
        records[:, 0] = records[:, 3] - np.uint64(128)
        records[:, 1] = 0
        number = np.arange(count, dtype=np.uint64)
        x, y = np.uint64(block[0]), np.uint64(block[1])
        records[:, 4], records[:, 5], records[:, 6] = number % x, number // x % y, number // (x * y)
        records[:, 7] = number % np.uint64(32)


def _pages(nbytes: int, flags: int = 0) -> mmap.mmap:
    return mmap.mmap(-1, nbytes, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | flags)
