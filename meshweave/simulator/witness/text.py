"""Read the text of LLVM IR as llvmlite prints it: types, lists, declarations."""

from __future__ import annotations

import re

from meshweave.simulator.witness.fault import WitnessError

TYPE = r"(?:\{[^{}]*\}|<[^<>]*>|\[[^\[\]]*\]|ptr addrspace\(\d+\)|ptr|void|half|bfloat|float|double|i\d+)"
_NBYTES = {"half": 2, "bfloat": 2, "float": 4, "double": 8}


def parts(listed: str) -> list[str]:
    """Split a list at the commas outside of all brackets and strings."""
    found, depth, quoted, start = [], 0, False, 0
    for at, letter in enumerate(listed):
        if letter == '"':
            quoted = not quoted
        elif quoted:
            continue
        elif letter in "([{<":
            depth += 1
        elif letter in ")]}>":
            depth -= 1
        elif letter == "," and depth == 0:
            found.append(listed[start:at].strip())
            start = at + 1
    last = listed[start:].strip()
    return [*found, last] if last else found


def bracketed(text: str, start: int) -> str:
    """Return what stands in the round brackets that open at `start`."""
    depth, quoted = 0, False
    for at in range(start, len(text)):
        letter = text[at]
        if letter == '"':
            quoted = not quoted
        elif not quoted:
            depth += (letter == "(") - (letter == ")")
            if depth == 0:
                return text[start + 1 : at]
    raise WitnessError(f"a bracket is not closed: {text.strip()[:80]}")


def type_at(text: str) -> str:
    """Return the type that a text begins with."""
    found = re.match(TYPE, text)
    if found is None:
        raise WitnessError(f"no type that the witness knows: {text.strip()[:80]}")
    return found[0]


def members(type_: str) -> list[str]:
    """Return the types of a struct's members; of another type itself; none of void."""
    if type_.startswith("{"):
        return parts(type_[1:-1])
    return [] if type_ == "void" else [type_]


def nbytes(type_: str) -> int:
    """Return how many bytes a load or store of a type touches."""
    if type_.startswith("ptr"):
        return 8
    if type_ in _NBYTES:
        return _NBYTES[type_]
    if found := re.fullmatch(r"i(\d+)", type_):
        return -(-int(found[1]) // 8)
    if found := re.fullmatch(r"[<\[](\d+) x (.+)[>\]]", type_):
        if found[2] == "i1" and type_[0] == "<":
            return -(-int(found[1]) // 8)
        return int(found[1]) * nbytes(found[2])
    raise WitnessError(f"no size of type {type_}")
