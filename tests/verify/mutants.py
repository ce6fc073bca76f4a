"""Wrong programs of one rank, made of right ones by a small change: none may be proven unless it computes the same.

python -m tests.verify.mutants --count 5000        thousands, from a seed; a line for each that is proven
"""

import argparse
import random
import re
import sys
import time
import traceback
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import numpy as np

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from verify import by_cases, heads, loops, parts, test_pieces, test_products
from verify.corpus import random_programs
from verify.own_ops import texts_of_ops
from verify.pairs import EXAMPLES, PROGRAMS, compared, mesh, texts
from verify.recent import traced

import meshweave as mw
from meshweave.api.program import random_arguments
from meshweave.dialects import lent_context
from meshweave.errors import CompileError, MeshweaveError
from meshweave.ir.bindings import ir
from meshweave.ir.locations import parse_module

GROUPS = ("named", "part", "own", "recent", "case", "loop", "head", "random")
"""Kinds of programs: examples and small ones, parts at a time, ops of our own, traced functions, what is proven case
by case, loops of many trips, heads one by one, random ones."""
RANDOM = 60
"""Random programs that are changed."""
Change = Callable[[random.Random, str], "str | None"]


@dataclass(frozen=True)
class Mutant:
    """A changed program of one rank. name: of the program; change: what was done to it."""

    name: str
    change: str
    whole: str
    right: str
    local: str


def _pick(rng: random.Random, pattern: str, text: str) -> "re.Match[str] | None":
    found = list(re.finditer(pattern, text))
    return rng.choice(found) if found else None


def _put(text: str, match: "re.Match[str]", new: str) -> str:
    return text[: match.start()] + new + text[match.end() :]


def drop_collective(rng: random.Random, text: str) -> "str | None":
    """Take what goes into a collective for what comes out of it."""
    match = _pick(
        rng, r'(%\w+) = "dist\.(?:all_reduce|permute)"\((%\w+)\).*: \((.*)\) -> (.*)\n', text
    )
    if match is None:
        return None
    made, given = match[1], match[2]
    return re.sub(rf"{made}(?!\w)", given, _put(text, match, ""))


def other_axes(rng: random.Random, text: str) -> "str | None":
    """Let a collective run over other axes."""
    match = _pick(rng, r'(?<="\(%)(\w+\) \{axes = )\[([^\]]*)\]', text)
    if match is None:
        return None
    names = [n.strip() for n in re.search(r'axes = "([^"]*)"', text)[1].split(",")]  # type: ignore[index]
    axes = [f'"{n.partition("=")[0]}"' for n in names]
    return _put(
        text, match, f"{match[1]}[{', '.join(rng.sample(axes, rng.randint(0, len(axes))))}]"
    )


def other_kind(rng: random.Random, text: str) -> "str | None":
    """Let a collective reduce in another way."""
    match = _pick(rng, r'kind = "(\w+)"', text)
    kinds = [k for k in ("sum", "max", "min", "prod", "avg") if match and k != match[1]]
    return _put(text, match, f'kind = "{rng.choice(kinds)}"') if match else None


def swap_operands(rng: random.Random, text: str) -> "str | None":
    """Swap two operands."""
    match = _pick(rng, r"(?:ins\(|arith\.\w+ )(%\w+), (%\w+)(?= :|,)", text)
    if match is None or match[1] == match[2]:
        return None
    whole = match[0]
    return _put(text, match, whole.replace(f"{match[1]}, {match[2]}", f"{match[2]}, {match[1]}"))


def other_operand(rng: random.Random, text: str) -> "str | None":
    """Read another value than before."""
    match = _pick(rng, r"(?<=[( ])%\w+(?=[,)\[ ])", text)
    names = sorted(set(re.findall(r"%\w+", text)))
    return _put(text, match, rng.choice(names)) if match else None


def other_index(rng: random.Random, text: str) -> "str | None":
    """Change a number that counts or says where."""
    match = _pick(rng, r"arith\.constant (\d+) : index", text)
    return _put(text, match, f"arith.constant {_near(rng, match[1])} : index") if match else None


def other_offset(rng: random.Random, text: str) -> "str | None":
    """Change a number of a slice."""
    match = _pick(rng, r"(?<=tensor\.)(extract|insert)_slice [^\n]*?\[([^\]]*\d[^\]]*)\]", text)
    if match is None:
        return None
    place = _pick(rng, r"(?<![%\w])\d+", match[0][match.start(2) - match.start() :])
    if place is None:
        return None
    at = match.start(2) + place.start()
    return text[:at] + str(_near(rng, place[0])) + text[at + len(place[0]) :]


def _near(rng: random.Random, number: str) -> int:
    return max(0, int(number) + rng.choice((-1, 1)))


def one_more_trip(rng: random.Random, text: str) -> "str | None":
    """Let a loop make a trip more: what it carries is carried once too often."""
    match = _pick(rng, r"( *)(%\S+ = scf\.for %\w+ = %\w+ to )(%\w+) step (%\w+)", text)
    if match is None:
        return None
    lines = f"{match[1]}%more = arith.addi {match[3]}, {match[4]} : index\n{match[1]}{match[2]}%more step {match[4]}"
    return _put(text, match, lines)


def other_share(rng: random.Random, text: str) -> "str | None":
    """Let a loop begin or end a step earlier or later: it overlaps with another one, or leaves out an iteration."""
    match = _pick(rng, r"( *)(%\S+ = scf\.for %\w+ = )(%\w+) to (%\w+) step (%\w+)", text)
    if match is None:
        return None
    ends, number, op = [match[3], match[4]], rng.randrange(2), rng.choice(("addi", "subi"))
    line = f"{match[1]}%moved = arith.{op} {ends[number]}, {match[5]} : index\n"
    ends[number] = "%moved"
    loop = f"{match[1]}{match[2]}{ends[0]} to {ends[1]} step {match[5]}"
    return _put(text, match, line + loop)


def other_place(rng: random.Random, text: str) -> "str | None":
    """Let a slice be where another one is: parts of two cores in one place, a panel for another."""
    match = _pick(rng, r"tensor\.(?:extract|insert)_slice [^\[]*\[([^\]]*%[^\]]*)\]", text)
    moving = match and _pick(rng, r"%\w+", match[1])
    if match is None or moving is None:
        return None
    indices = re.findall(r"(%\w+) = [^\n]* : index\n|scf\.for (%\w+) =", text)
    names = sorted({name for pair in indices for name in pair if name})
    at = match.start(1) + moving.start()
    return text[:at] + rng.choice(names) + text[at + len(moving[0]) :]


def other_state(rng: random.Random, text: str) -> "str | None":
    """Let a loop begin with, or hand on, another value of the same type: an accumulator is shared, or not kept."""
    match = _pick(rng, r"iter_args\(([^)]*)\)|scf\.yield (%[^:\n]*) : ", text)
    if match is None:
        return None
    given = rng.choice(re.findall(r"%[\w#]+(?=,|$)", (match[1] or match[2]).strip()))
    alike = [n for n in _alike(text, given) if n != given]
    if not alike:
        return None
    return _put(text, match, re.sub(rf"{given}(?![\w#])", rng.choice(alike), match[0], count=1))


def other_carried(rng: random.Random, text: str) -> "str | None":
    """Let a loop note another layout, or another tensor, of what it carries, and change it in a second way.

    The note alone changes nothing: the check begins with it, and believes none of it.
    """
    match = _pick(
        rng, r"dist\.global = tensor<([^>]*)>, dist\.layout = #[^,}]*(?=\}, \{|\}\]\})", text
    )
    if match is None:
        return None
    axes = [n.partition("=")[0].strip() for n in re.search(r'axes = "([^"]*)"', text)[1].split(",")]  # type: ignore[index]
    *sizes, element = match[1].split("x")
    wider = [str(2 * int(n)) if rng.random() < 0.1 else n for n in sizes]
    words = rng.sample([*axes, *[f"_*{a}" for a in axes], *["_"] * len(sizes)], len(sizes))
    layout = f'#dist.layout<"[{", ".join(words)}]">'
    noted = f"dist.global = tensor<{'x'.join([*wider, element])}>, dist.layout = {layout}"
    second = rng.choice((other_state, other_operand, one_more_trip, swap_operands, other_op))
    return second(rng, _put(text, match, noted))


def _alike(text: str, name: str) -> list[str]:
    """The values that have the type of a value."""
    types = dict(re.findall(r"(%\w+) = [^\n]*[ >(](tensor<[^\n ]*>)(?: \{)?\n", text))
    types |= dict(re.findall(r"(%arg\w+): (tensor<[^ ]*>)", text))
    long = r"(%\w+) = linalg\.generic [^\n]*\{\n(?:[^\n]*\n)*?\s*\} -> (tensor<[^\n ]*>)"
    types |= dict(re.findall(long, text))
    for names, kinds in re.findall(r"iter_args\(([^)]*)\) -> \(([^)]*)\)", text):
        types |= dict(zip(re.findall(r"(%\w+) =", names), kinds.split(", ")))
    return sorted(n for n, t in types.items() if t == types.get(name))


def short_halo(rng: random.Random, text: str) -> "str | None":
    """Lose the first or the last row of what ranks have exchanged, or move it all by a row."""
    pattern = (
        r'(%\w+) = ("dist\.(?:exchange|permute|all_gather)"[^\n]*-> tensor<([\dx]+)x(f\d+)>)\n'
    )
    match = _pick(rng, pattern, text)
    if match is None:
        return None
    made, op, shape, kind = match.groups()
    sizes = [int(n) for n in shape.split("x")]
    dim = rng.randrange(len(sizes))
    if sizes[dim] < 2:
        return None

    def row(there: int, others: "list[int] | None" = None) -> str:
        return ", ".join(
            str(there if d == dim else n) for d, n in enumerate(others or [0] * len(sizes))
        )

    first, low = rng.choice(((0, 0), (1, 1), (1, 0), (0, 1)))
    less = f"tensor<{row(sizes[dim] - 1, sizes).replace(', ', 'x')}x{kind}>"
    ones, places = (
        ", ".join("1" * len(sizes)),
        ", ".join(f"%p{d}: index" for d in range(len(sizes))),
    )
    lines = f"""%whole = {op}
%row = tensor.extract_slice %whole[{row(first)}] [{row(sizes[dim] - 1, sizes)}] [{ones}]
  : tensor<{shape}x{kind}> to {less}
%nothing = arith.constant 0.0 : {kind}
{made} = tensor.pad %row low[{row(low)}] high[{row(1 - low)}] {{
^bb0({places}):
  tensor.yield %nothing : {kind}
}} : {less} to tensor<{shape}x{kind}>
"""
    return _put(text, match, lines)


def other_number(rng: random.Random, text: str) -> "str | None":
    """Change a neutral element, or another constant."""
    match = _pick(rng, r"(0\.000000e\+00|0xFF800000|1\.000000e\+00)", text)
    if match is None:
        return None
    others = {"0.000000e+00", "0xFF800000", "1.000000e+00", "-1.000000e+00"} - {match[1]}
    return _put(text, match, rng.choice(sorted(others)))


def other_op(rng: random.Random, text: str) -> "str | None":
    """Compute something else."""
    groups = (
        ("addf", "subf", "mulf", "maximumf", "minimumf"),
        ("addi", "subi", "muli"),
        ("ult", "ule", "ugt", "uge", "eq"),
    )
    group = rng.choice(groups)
    match = _pick(rng, rf"(?<=[. ])({'|'.join(group)})(?=[ ,}}])", text)
    others = [o for o in group if match and o != match[1]]
    return _put(text, match, rng.choice(others)) if match else None


def other_dim(rng: random.Random, text: str) -> "str | None":
    """Let an op work on another dim, or permute in another way."""
    match = _pick(rng, r"((?:\w*dim) = |dimensions = \[)(\d)", text)
    return _put(text, match, f"{match[1]}{_near(rng, match[2])}") if match else None


def other_window(rng: random.Random, text: str) -> "str | None":
    """Move or widen a piece that ranks send, or send it to another."""
    match = _pick(rng, r'"dist\.(?:exchange|permute|all_to_all)"\([^\n]*?(?=\} : )', text)
    place = match and _pick(rng, r"(?<![\w%])-?\d+(?!\w)", match[0])
    if match is None or place is None:
        return None
    at = match.start() + place.start()
    number = str(int(place[0]) + rng.choice((-1, 1)))
    return text[:at] + number + text[at + len(place[0]) :]


def other_coordinate(rng: random.Random, text: str) -> "str | None":
    """Take the coordinate of the next rank for that of this one."""
    match = _pick(rng, r'(%\w+) = ("dist\.axis_index"\(\) [^\n]* -> index)', text)
    if match is None:
        return None
    one = "%near = arith.constant 1 : index"
    return _put(
        text, match, f"%rank = {match[2]}\n{one}\n{match[1]} = arith.addi %rank, %near : index"
    )


def other_start(rng: random.Random, text: str) -> "str | None":
    """Drop where a scan, a sum or a scatter starts from, or what a routine reads, for another value of its type."""
    match = _pick(rng, r'"mw\.\w+"\(([^)]*)\)|outs\((%[\w#]+) :', text)
    if match is None:
        return None
    given = rng.choice([n.strip() for n in (match[1] or match[2]).split(",")])
    alike = [n for n in _alike(text, given) if n != given]
    if not alike:
        return None
    changed = re.sub(rf"{given}(?![\w#])", rng.choice(alike), match[0], count=1)
    return _put(text, match, changed)


def other_flag(rng: random.Random, text: str) -> "str | None":
    """Let an op of our own do it the other way round, or do something else."""
    match = _pick(rng, r"\{((?:dim|kind|routine) = [^}\n]*)\} : ", text)
    if match is None:
        return None
    words = match[1].split(", ")
    flags = ("reverse", "descending", "total", "lower", "unit", "transposed")
    flag = rng.choice(flags)
    kinds = {"fft": "ifft", "ifft": "fft", "potrf": "getrf", "syevd": "gesdd"}
    if flag in words:
        words.remove(flag)
    elif rng.randrange(2):
        words.append(flag)
    else:
        words = [re.sub(r'"(\w+)"', lambda m: f'"{kinds.get(m[1], m[1])}"', w) for w in words]
    return _put(text, match, f"{{{', '.join(words)}}} : ")


def other_source(rng: random.Random, text: str) -> "str | None":
    """Let two ranks receive what the other one should."""
    match = _pick(rng, r"sources = \[([\d, ]+)\]", text)
    sources = match[1].split(", ") if match else []
    if match is None or len(sources) < 2:
        return None
    a, b = rng.sample(range(len(sources)), 2)
    sources[a], sources[b] = sources[b], sources[a]
    return _put(text, match, f"sources = [{', '.join(sources)}]")


def other_extent(rng: random.Random, text: str) -> "str | None":
    """Change a number of a table, such as where the part of a rank begins."""
    match = _pick(rng, r"dense<\[([\d, ]+)\]> : tensor<\d+xindex>", text)
    place = match and _pick(rng, r"\d+", match[1])
    if match is None or place is None:
        return None
    at = match.start(1) + place.start()
    return text[:at] + str(_near(rng, place[0])) + text[at + len(place[0]) :]


CHANGES: tuple[Change, ...] = (
    drop_collective,
    other_axes,
    other_kind,
    swap_operands,
    other_operand,
    other_index,
    other_offset,
    one_more_trip,
    other_number,
    other_op,
    other_dim,
    other_window,
    other_coordinate,
    other_start,
    other_flag,
    other_share,
    other_place,
    other_state,
    other_carried,
    short_halo,
    other_source,
    other_extent,
)
OF_PARTS: tuple[Change, ...] = (other_share, other_place, other_state, short_halo)
"""Changes of programs that do a part at a time (`parts.py`): half of theirs are such."""


def programs(examples: bool = False) -> dict[str, tuple[str, str]]:
    """The programs that are changed, by name: the whole one and that of a rank."""
    found = {name: texts(text) for name, text in PROGRAMS.items()}
    if not examples:
        return found
    for name in ("mlp", "attention", "block"):
        found[name] = texts((EXAMPLES / name / f"{name}.mlir").read_text())
    found["slices of a ring"] = mesh("x=2") + test_pieces.GATHERED, mesh("x=2") + test_pieces.RING
    for name, scores in (("plain", test_products.PLAIN), ("masked", test_products.MASKED)):
        sides = (test_products.WHOLE, test_products.ONLINE)
        found[f"online softmax, {name}"] = tuple([s.replace("SCORES", scores) for s in sides])
    found |= {f"part {name}": pair for name, pair in parts.on_tensors().items()}
    for name, text in texts_of_ops().items():
        pair = texts(text)
        if compared(*pair).status == 0:
            found[f"own {name}"] = pair
    for name, pair in traced().items():
        if compared(*pair).status == 0:
            found[f"recent {name}"] = pair
    found |= {f"case {name}": pair for name, pair in by_cases.traced().items()}
    found |= {f"loop {name}": pair for name, pair in loops.traced().items()}
    found |= {f"head {name}": pair for name, pair in heads.traced().items()}
    for number, text in enumerate(random_programs(RANDOM, 0)):
        pair = texts(text)
        if compared(*pair).status == 0:
            found[f"random {number}"] = pair
    return found


def mutants(count: int, seed: int, made: dict[str, tuple[str, str]]) -> Iterator[Mutant]:
    """Changed programs, `count` of them that can be read, as many of each group."""
    rng = random.Random(seed)
    groups = [[n for n in sorted(made) if _group(n) == g] for g in GROUPS]
    while count:
        name = rng.choice(rng.choice([g for g in groups if g]))
        change = rng.choice(OF_PARTS if _group(name) == "part" and rng.randrange(2) else CHANGES)
        whole, right = made[name]
        local = change(rng, right)
        if local is not None and local != right and is_program(local):
            count -= 1
            yield Mutant(name, change.__name__, whole, right, local)


def _group(name: str) -> str:
    first = name.partition(" ")[0]
    return first if first in GROUPS else GROUPS[0]


def is_program(text: str) -> bool:
    """Whether a text can be read."""
    with lent_context(unregistered=False) as ctx, ctx, ir.Location.unknown():
        try:
            parse_module(text, ctx, "local")
        except MeshweaveError:
            return False
    return True


def verdict(mutant: Mutant) -> str:
    """What becomes of a mutant: refused (it does not belong to the whole program), refuted, unproven or proven."""
    try:
        found = compared(mutant.whole, mutant.local)
    except MeshweaveError:
        return "refused"
    return {0: "proven", 1: "refuted", 3: "unproven"}[found.status]


@cache
def results(text: str) -> tuple[np.ndarray, ...]:
    """What a program computes, on all its ranks, of some arguments.

    One of several ranks says of what its arguments are parts (`dist.global`), so that it is compiled as the program of
    a rank that it is. As a whole program it would rightly be refused: `dist.permute` moves the parts that it is cut
    into, not the tensors that it names.
    """
    with mw.compile(text, timeout=30) as program:
        return tuple(np.array(r) for r in program(*random_arguments(program.inputs, 7)))


def computes_the_same(mutant: Mutant) -> bool:
    """Run a mutant and the program it was made of."""
    pairs = zip(results(mutant.right), results(mutant.local), strict=True)
    return all(np.allclose(a, b, rtol=1e-4, atol=1e-5, equal_nan=True) for a, b in pairs)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--count", type=int, default=1000)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--only", choices=GROUPS, help="programs of this kind")
    parser.add_argument("--seconds", type=float, default=float("inf"), help="end after so long")
    options = parser.parse_args()
    counts: Counter[str] = Counter()
    changes: dict[str, Counter[str]] = {}
    end = time.monotonic() + options.seconds
    made = programs(examples=True)
    made = {n: pair for n, pair in made.items() if options.only in (None, _group(n))}
    for mutant in mutants(options.count, options.seed, made):
        if time.monotonic() > end:
            break
        try:
            found = verdict(mutant)
        except Exception:
            counts["CRASHED"] += 1
            print(f"the check crashed: {mutant.name}, {mutant.change}\n{mutant.local}")
            traceback.print_exc(file=sys.stdout)
            continue
        counts[found] += 1
        changes.setdefault(mutant.change, Counter())[found] += 1
        if found != "proven":
            continue
        try:
            right = computes_the_same(mutant)
        except CompileError as error:
            counts["refused in the end"] += 1
            print(f"proven, and refused in the end: {mutant.name}, {mutant.change}: {error}")
            continue
        except Exception:
            counts["CRASHED"] += 1
            print(f"proven, and crashed: {mutant.name}, {mutant.change}\n{mutant.local}")
            traceback.print_exc(file=sys.stdout)
            continue
        if not right:
            counts["WRONG"] += 1
            print(f"proven, but wrong: {mutant.name}, {mutant.change}\n{mutant.local}")
    for change, found_of in sorted(changes.items()):
        print(f"{change:18}", ", ".join(f"{n} {what}" for what, n in sorted(found_of.items())))
    print(", ".join(f"{n} {what}" for what, n in sorted(counts.items())))
    return int(counts["WRONG"] + counts["CRASHED"] > 0)


if __name__ == "__main__":
    sys.exit(main())
