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

from verify import parts
from verify.mutants import results
from verify.pairs import EXAMPLES, PROGRAMS
from verify.test_buffers import EARLY, LOOP, TURNS, TWICE, UPDATES, answer, lowered, planned

from meshweave.errors import CompileError, MeshweaveError
from meshweave.lowering.cpu import pieces

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


def other_taken(rng: random.Random, text: str) -> "str | None":
    """Let a result take another input's buffer, or let inputs be written that are not given up."""
    match = _pick(rng, re.compile(r"(?<=mw\.taken = array<i64: )[-\d, ]+(?=>)"), text)
    given = len(re.findall(r"%arg\d+: memref", text[: match.start()])) if match else 0
    if match is None:
        return None
    taken = match[0].split(", ")
    taken[rng.randrange(len(taken))] = str(rng.randrange(-1, max(1, given - len(taken))))
    made = _put(text, match, ", ".join(taken))
    if rng.randrange(2):  # the interface says so too
        made = re.sub(r", takes = \d+ : i64", "", made)
        outputs = re.search(r"outputs = \[(.*)\]\}", made)
        assert outputs is not None
        ends = list(re.finditer(r"\}", outputs[0][:-2]))
        for end, number in reversed(list(zip(ends, taken, strict=True))):
            at = outputs.start() + end.start()
            made = made[:at] + (f", takes = {number} : i64" if number != "-1" else "") + made[at:]
    return made


def write_early(rng: random.Random, text: str) -> "str | None":
    """Let a donated buffer be written before its last read: an op that writes an input, some lines earlier."""
    lines = text.splitlines(keepends=True)
    writes = [
        k for k, line in enumerate(lines)
        if re.match(r' *"mw\.(?:launch|collective)"\(.*%arg\d+\) |memref\.(?:copy|store) .*%arg\d+', line)
    ]  # fmt: skip
    if not writes:
        return None
    at = rng.choice(writes)
    before = [k for k in range(max(0, at - 6), at) if _LINE.match(lines[k])]
    if not before:
        return None
    line = lines.pop(at)
    lines.insert(rng.choice(before), line)
    return "".join(lines)


def other_lifetime(rng: random.Random, text: str) -> "str | None":
    """Say of a buffer that it is used from earlier or later on, or for shorter or longer."""
    match = _pick(rng, re.compile(r"(?<=lifetime = array<i64: )\d+, \d+"), text)
    if match is None:
        return None
    ends = [int(n) for n in match[0].split(", ")]
    ends[rng.randrange(2)] += rng.choice((-9, -2, -1, 1, 2, 9))
    return _put(text, match, ", ".join(str(max(0, n)) for n in ends))


def other_count(rng: random.Random, text: str) -> "str | None":
    """Let loops run over one number more or less: a share of iterations that is left out, or done twice."""
    match = _pick(rng, re.compile(r"(?<=arith\.constant )\d+(?= : index)"), text)
    return _put(text, match, str(max(0, int(match[0]) + rng.choice((-1, 1))))) if match else None


CHANGES: tuple[Change, ...] = (
    move_buffer, shift_buffer, bend_buffer, shrink_arena, drop_op, move_op, move_start,
    work_in_place, other_operand, other_rows, other_place, other_area, other_taken, write_early, other_count,
    other_lifetime,
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
    on_tensors |= {"one of two": UPDATES, "one of two, in turn": TURNS}
    found |= {name: planned(text) for name, text in on_tensors.items()}
    return found | (parts.on_buffers() if examples else parts.donating())


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
    """Run a mutant and the program it was made of, with all loops shared that cores may share."""
    grain, pieces.GRAIN = pieces.GRAIN, 1
    try:
        pairs = list(zip(results(mutant.right), results(mutant.buffers), strict=True))
    finally:
        pieces.GRAIN = grain
    return all(
        np.allclose(a, b, rtol=1e-4, atol=1e-6 * float(np.abs(a).max(initial=1.0)), equal_nan=True)
        for a, b in pairs
    )


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--count", type=int, default=1000)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--parts", action="store_true", help="only programs of `parts.py`")
    options = parser.parse_args()
    counts: Counter[str] = Counter()
    chosen = parts.on_buffers() if options.parts else programs(examples=True)
    for mutant in mutants(options.count, options.seed, chosen):
        found = verdict(mutant)
        counts[found] += 1
        if found == "proven":
            counts[f"proven: {mutant.change}"] += 1
            try:
                right = computes_the_same(mutant)
            except CompileError as error:
                counts["refused in the end"] += 1
                print(f"proven, and refused in the end: {mutant.name}, {mutant.change}: {error}")
                continue
            if not right:
                counts["WRONG"] += 1
                print(f"proven, but wrong: {mutant.name}, {mutant.change}\n{mutant.buffers}")
    print(", ".join(f"{n} {what}" for what, n in sorted(counts.items())))
    return int(counts["WRONG"] > 0)


if __name__ == "__main__":
    sys.exit(main())
