"""Wrong plans of memory, made of right ones by a small change: none may be proven unless it computes the same.

python -m tests.verify.buffer_mutants --count 3000     thousands, from a seed; what is proven and wrong is printed
"""

import argparse
import random
import re
import sys
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import numpy as np

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from verify.mutants import results
from verify.pairs import EXAMPLES, PROGRAMS
from verify.test_buffers import EARLY, LOOP, TWICE, answer, lowered, planned

from meshweave.errors import MeshweaveError

Change = Callable[[random.Random, str], "str | None"]
_OFFSET = re.compile(r"(?<=offset = )\d+(?= : i64} : \(\) -> memref)")
_WORK = re.compile(
    r' *"mw\.(?:launch|collective|start|wait|call)"\((.*?)\)(.*) : \((.*)\) -> \(\)\n'
)
_LINE = re.compile(r' *(?:"mw\.(?:launch|collective|start|wait)"|memref\.copy).*\n')


@dataclass(frozen=True)
class Mutant:
    """A changed program on buffers. name: of the program; change: what was done to it."""

    name: str
    change: str
    tensors: str
    right: str
    buffers: str


def _put(text: str, match: "re.Match[str]", new: str) -> str:
    return text[: match.start()] + new + text[match.end() :]


def _pick(rng: random.Random, pattern: "re.Pattern[str]", text: str) -> "re.Match[str] | None":
    found = list(pattern.finditer(text))
    return rng.choice(found) if found else None


def move_buffer(rng: random.Random, text: str) -> "str | None":
    """Put a buffer where another one lies."""
    match = _pick(rng, _OFFSET, text)
    places = sorted({m[0] for m in _OFFSET.finditer(text)})
    return _put(text, match, rng.choice(places)) if match else None


def shift_buffer(rng: random.Random, text: str) -> "str | None":
    """Put a buffer one alignment further, or before."""
    match = _pick(rng, _OFFSET, text)
    return _put(text, match, str(max(0, int(match[0]) + rng.choice((-64, 64))))) if match else None


def bend_buffer(rng: random.Random, text: str) -> "str | None":
    """Put a buffer between two places where one may lie."""
    match = _pick(rng, _OFFSET, text)
    return _put(text, match, str(int(match[0]) + rng.choice((4, 32, 60)))) if match else None


def shrink_arena(rng: random.Random, text: str) -> "str | None":
    """Give the arena a line less."""
    match = _pick(rng, re.compile(r"(?<=mw\.arena_bytes = )[1-9]\d*"), text)
    return _put(text, match, str(max(0, int(match[0]) - 64))) if match else None


def drop_op(rng: random.Random, text: str) -> "str | None":
    """Leave out a kernel, a copy, a collective, a start or a wait."""
    match = _pick(rng, _LINE, text)
    return _put(text, match, "") if match else None


def move_op(rng: random.Random, text: str) -> "str | None":
    """Let an op run after the next one."""
    match = _pick(rng, re.compile(f"({_LINE.pattern})({_LINE.pattern})"), text)
    return _put(text, match, match[2] + match[1]) if match else None


def move_start(rng: random.Random, text: str) -> "str | None":
    """Start a collective later, wait for it earlier, or even before it is started."""
    start, wait = (re.search(rf' *"mw\.{which}".*\n', text) for which in ("start", "wait"))
    if start is None or wait is None:
        return None
    before, between, after = (
        text[: start.start()],
        text[start.end() : wait.start()],
        text[wait.end() :],
    )
    order = rng.choice(
        ((between, start[0], wait[0]), (start[0], wait[0], between), (wait[0], between, start[0]))
    )
    return "".join((before, *order, after))


def work_in_place(rng: random.Random, text: str) -> "str | None":
    """Let an op write one of the buffers that it reads."""
    match = _pick(rng, _WORK, text)
    if match is None:
        return None
    values, types = match[1].split(", "), re.findall(r"memref<(?:[^<>]|<[^<>]*>)*>|\w+", match[3])
    same = [v for v, t in zip(values[:-1], types) if t == types[-1] and v != values[-1]]
    if len(values) != len(types) or not same:
        return None
    return _put(
        text, match, match[0].replace(match[1], ", ".join([*values[:-1], rng.choice(same)]))
    )


def other_operand(rng: random.Random, text: str) -> "str | None":
    """Let an op work on another buffer."""
    match = _pick(rng, _WORK, text)
    if match is None:
        return None
    values = match[1].split(", ")
    names = sorted(
        set(re.findall(r"%[\w#]+(?= = \"mw\.(?:place|share))|%arg\d+(?=: memref)", text))
    )
    if not names:
        return None
    values[rng.randrange(len(values))] = rng.choice(names)
    return _put(text, match, match[0].replace(match[1], ", ".join(values)))


def other_rows(rng: random.Random, text: str) -> "str | None":
    """Let kernels share more loops, or fewer."""
    match = _pick(rng, re.compile(r"(?<={rows = )\d+"), text)
    return _put(text, match, str(max(0, int(match[0]) + rng.choice((-1, 1))))) if match else None


def other_place(rng: random.Random, text: str) -> "str | None":
    """Look at another place of a buffer: one index of a view, of a load or of a store is another number."""
    match = _pick(
        rng, re.compile(r"(?:memref\.(?:subview|load|store) (?:%\w+, )?%\w+)\[%[\w, %]*\]"), text
    )
    if match is None:
        return None
    names = sorted(set(re.findall(r"%\w+(?= = arith\.constant \d+ : index)", text)))
    inner = _pick(rng, re.compile(r"%\w+(?=[,\]])(?<!\[)"), match[0][match[0].index("[") :])
    if inner is None or not names:
        return None
    at = match.start() + match[0].index("[")
    return text[: at + inner.start()] + rng.choice(names) + text[at + inner.end() :]


def other_area(rng: random.Random, text: str) -> "str | None":
    """Let what is sent early wait elsewhere."""
    match = _pick(rng, re.compile(r"(?<=area = )\d+"), text)
    return _put(text, match, str(max(0, int(match[0]) - rng.choice((32, 64))))) if match else None


CHANGES: tuple[Change, ...] = (
    move_buffer, shift_buffer, bend_buffer, shrink_arena, drop_op, move_op, move_start,
    work_in_place, other_operand, other_rows, other_place, other_area,
)  # fmt: skip


@cache
def programs(examples: bool = False) -> dict[str, tuple[str, str]]:
    """The programs that are changed, by name: on tensors and on buffers."""
    texts = dict(PROGRAMS)
    if examples:
        for name in ("mlp", "attention", "block"):
            texts[name] = (EXAMPLES / name / f"{name}.mlir").read_text()
    found = {name: lowered(text) for name, text in texts.items()}
    on_tensors = {"a loop": LOOP, "sent early": EARLY, "two branches": TWICE}
    return found | {name: planned(text) for name, text in on_tensors.items()}


def mutants(
    count: int,
    seed: int,
    chosen: dict[str, tuple[str, str]],
    changes: "tuple[Change, ...]" = CHANGES,
) -> Iterator[Mutant]:
    """Changed programs, `count` tries."""
    rng = random.Random(seed)
    for _ in range(count):
        name, change = rng.choice(sorted(chosen)), rng.choice(changes)
        tensors, right = chosen[name]
        buffers = change(rng, right)
        if buffers is not None and buffers != right:
            yield Mutant(name, change.__name__, tensors, right, buffers)


def verdict(mutant: Mutant) -> str:
    """What becomes of a mutant: refused (it is no program), refuted, unproven or proven."""
    try:
        found = answer(mutant.tensors, mutant.buffers)
    except MeshweaveError:
        return "refused"
    return {0: "proven", 1: "refuted", 3: "unproven"}[found.status]


def computes_the_same(mutant: Mutant) -> bool:
    """Run a mutant and the program it was made of."""
    pairs = zip(results(mutant.right), results(mutant.buffers), strict=True)
    return all(
        np.allclose(a, b, rtol=1e-4, atol=1e-6 * float(np.abs(a).max(initial=1.0)), equal_nan=True)
        for a, b in pairs
    )


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--count", type=int, default=1000)
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    counts: Counter[str] = Counter()
    for mutant in mutants(options.count, options.seed, programs(examples=True)):
        found = verdict(mutant)
        counts[found] += 1
        if found == "proven":
            counts[f"proven: {mutant.change}"] += 1
            if not computes_the_same(mutant):
                counts["WRONG"] += 1
                print(f"proven, but wrong: {mutant.name}, {mutant.change}\n{mutant.buffers}")
    print(", ".join(f"{n} {what}" for what, n in sorted(counts.items())))
    return int(counts["WRONG"] > 0)


if __name__ == "__main__":
    sys.exit(main())
