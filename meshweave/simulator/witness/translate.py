"""Turn the LLVM IR of a kernel into code of the host: `host_code`.

before:  %4 = call i32 @llvm.nvvm.read.ptx.sreg.tid.x()
         %9 = load float, ptr addrspace(1) %8, align 4
after:   %4 = call i32 @device.read.ptx.sreg.tid.x()
         %w.2.9 = addrspacecast ptr addrspace(1) %8 to ptr
         call void @witness.touch(ptr %w.2.9, i64 4, i64 4, i64 2)
         %9 = load float, ptr addrspace(1) %8, align 4

Every access is checked before it is made, and every branch counts, so that neither leaves the process. What
one thread computes alone is defined in LLVM IR (scalar.py); where threads meet, or copies are asked for, the
thread stops and its request is answered in Python (block.py). All else is refused by name.
"""

from __future__ import annotations

import re
from collections.abc import Collection
from dataclasses import dataclass, field
from itertools import groupby

from meshweave.simulator.witness import scalar
from meshweave.simulator.witness.fault import WitnessError
from meshweave.simulator.witness.fibers import RUNTIME, SLOTS, place_of_slot
from meshweave.simulator.witness.text import TYPE, bracketed, members, nbytes, parts, type_at

# Of LLVM's own functions, those that mean the same on every target.
_EVERYWHERE = re.compile(
    r"llvm\.(fma|fabs|sqrt|floor|ceil|trunc|rint|nearbyint|roundeven|round|copysign|minimum|maximum|minnum|maxnum"
    r"|minimumnum|maximumnum|[su](min|max|mul\.with\.overflow|add\.with\.overflow|add\.sat|sub\.sat)|abs|ctlz|cttz|ctpop"
    r"|bswap|bitreverse|fsh[lr]|fpto[su]i\.sat|powi|is\.fpclass|vector\.reduce\.\w+)\.[\w.]+"
    r"|llvm\.(assume|lifetime\.(start|end)[\w.]*|experimental\.noalias\.scope\.decl)"
)
_ACCESS = re.compile(
    r"\s+(?:(%\S+) = )?(load|store) (?:atomic )?(?:volatile )?(.*?), (ptr(?: addrspace\(\d+\))?) (.+?)"
    r"(?: syncscope\(\"\w+\"\))?(?: monotonic| acquire| release| seq_cst| unordered)?, align (\d+)(?:,.*)?$"
)
_SHARED = re.compile(
    r"^@([\w.$]+) = .*addrspace\(3\) global (\[.*\]|\w+)(?: undef| poison| zeroinitializer)?(?:, align (\d+))?$"
)
_ENTRY = re.compile(r"^define ptx_kernel void @([\w.$]+)\(")
_SPECIAL = {  # words of the machine, and of the thread
    **{f"{name}.{axis}": ("machine", first + k) for name, first in (("ctaid", 8), ("nctaid", 11), ("ntid", 14))
       for k, axis in enumerate("xyz")},
    **{f"tid.{axis}": ("thread", 4 + k) for k, axis in enumerate("xyz")},
    "laneid": ("thread", 7),
}  # fmt: skip


@dataclass
class TranslatedModule:
    """Hold a module of the host.

    lines:    of the kernel's own text, for messages.
    entries:  the types of each kernel's parameters.
    requests: what a thread may stop for; it says so by a number, counted from 1.
    shared:   the variables of shared memory: name, bytes (0: as many as the launch gives) and alignment.
    """

    lines: list[str]
    text: str = ""
    entries: dict[str, list[str]] = field(default_factory=dict)
    requests: list[str] = field(default_factory=list)
    shared: list[tuple[str, int, int]] = field(default_factory=list)
    defined: dict[str, str] = field(default_factory=dict)

    def request(self, name: str) -> int:
        """Return the number of a request."""
        if name not in self.requests:
            self.requests.append(name)
        return self.requests.index(name) + 1


def host_code(text: str, answered: Collection[str]) -> TranslatedModule:
    """Translate a module, libdevice's functions included. answered: patterns of the requests that Python answers.

    Raises WitnessError that names what is not known.
    """
    code = TranslatedModule(text.split("\n"))
    known = re.compile("|".join(answered))
    made = []
    for number, line in enumerate(code.lines):
        made.append(_line(code, known, number, line))
    starts = [_start(name, types) for name, types in code.entries.items()]
    code.text = "\n".join([*made, RUNTIME, scalar.helpers(), *code.defined.values(), *starts])
    for short in ("fabs.f32", "fabs.f64", "copysign.f32", "copysign.f64"):
        name = f"@llvm.{short}"
        kind = "float" if short.endswith("32") else "double"
        if not re.search(rf"^declare .*{re.escape(name)}\(", code.text, re.MULTILINE):
            arguments = ", ".join([kind] * (2 if "copysign" in short else 1))
            code.text += f"\ndeclare {kind} {name}({arguments})"
    return code


def _line(code: TranslatedModule, known: re.Pattern[str], number: int, line: str) -> str:
    if line.startswith(("target ", "declare ")):
        return _declared(code, known, line)
    if line.startswith("@"):
        return _variable(code, line)
    if line.startswith("define "):
        return _defined(code, line)
    word = re.match(r"\s+(?:%\S+ = )?(?:(?:tail|notail) )?([a-z]+)", line)
    if word is None:
        return line
    if word[1] in ("br", "switch"):
        return f"  call void @witness.tick()\n{line}"
    if word[1] in ("udiv", "sdiv", "urem", "srem"):
        return _division(number, line)
    if word[1] in ("load", "store", "atomicrmw", "cmpxchg"):
        return _access(number, line)
    if word[1] == "call":
        return _call(code, known, line)
    if word[1] in ("invoke", "indirectbr", "callbr", "fence", "vaarg"):
        raise WitnessError(f"{word[1]}: not known to the witness: {line.strip()[:80]}")
    return line


def _variable(code: TranslatedModule, line: str) -> str:
    """Leave a variable of shared memory to be placed; take the others as they are."""
    if "addrspace(3)" not in line.split("=")[1].split("[")[0]:
        return line
    found = _SHARED.match(line)
    if found is None:
        raise WitnessError(f"a variable of shared memory that starts with a value: {line[:80]}")
    code.shared.append((found[1], nbytes(found[2]), int(found[3] or 16)))
    return f"@{found[1]} = external addrspace(3) global {found[2]}"


def _defined(code: TranslatedModule, line: str) -> str:
    if found := _ENTRY.match(line):
        listed = bracketed(line, line.index("(", found.end() - 1))
        code.entries[found[1]] = [_parameter(found[1], part) for part in parts(listed)]
    return re.sub(r" #\d+ (?=.*\{$)|(?<=^define )ptx_kernel ", " ", line)


def _parameter(entry: str, part: str) -> str:
    if "byval" in part:
        raise WitnessError(f"{entry}: a parameter that is passed by value in memory")
    return type_at(part)


def _declared(code: TranslatedModule, known: re.Pattern[str], line: str) -> str:
    """Drop what is defined here, and what the host has under the same name keep."""
    found = re.match(rf"declare (?:[\w(), -]*? )?({TYPE}) @([\w.$]+)\(", line)
    if found is None:
        return ""  # the target
    result, name = found[1], found[2]
    if not name.startswith("llvm.nvvm."):
        if not _EVERYWHERE.fullmatch(name):
            raise WitnessError(f"{name}: not known to the witness")
        return re.sub(r" #\d+$", "", line)
    short = name.removeprefix("llvm.nvvm.")
    types = [type_at(part) for part in parts(bracketed(line, found.end() - 1))]
    _define(code, known, short, result, types)
    return ""


def _define(
    code: TranslatedModule, known: re.Pattern[str], name: str, result: str, types: list[str]
) -> str:
    """Define what stands for an intrinsic or for PTX in the kernel, once, and return its name."""
    symbol = name.replace(" ", ".")
    listed = ", ".join(f"{kind} %a{k}" for k, kind in enumerate(types))
    head = f"define {result} @device.{symbol}({listed})"
    if symbol in code.defined:
        if not code.defined[symbol].startswith(head):
            raise WitnessError(f"{name}: called with arguments of several types")
        return symbol
    place = _SPECIAL.get(name.removeprefix("read.ptx.sreg."))
    body = scalar.body(name, result)
    if place is not None:
        body = _special(*place)
    elif body is None and known.fullmatch(name):
        body = _stop(name, code.request(name), result, types)
    if body is None:
        raise WitnessError(f"{name}: not known to the witness")
    code.defined[symbol] = f"{head} noinline {{\n{body}\n}}"
    return symbol


def _special(whose: str, word: int) -> str:
    base, first = "@witness.machine", ""
    if whose == "thread":
        base, first = "%t", "%t = load ptr, ptr getelementptr (i64, ptr @witness.machine, i64 1)\n"
    return (
        f"{first}%p = getelementptr i64, ptr {base}, i64 {word}\n%r = load i32, ptr %p\nret i32 %r"
    )


def _stop(name: str, request: int, result: str, types: list[str]) -> str:
    """Put the arguments into the thread's slots, let others run, and return what is in the slots afterwards."""
    if max(len(types), len(members(result))) > SLOTS:
        raise WitnessError(f"{name}: more than {SLOTS} values")
    lines = ["%t = load ptr, ptr getelementptr (i64, ptr @witness.machine, i64 1)"]
    for k, kind in enumerate(types):
        lines += [f"%p{k} = getelementptr i64, ptr %t, i64 {place_of_slot(k)}"]
        if nbytes(kind) < 8:
            lines += [f"store i64 0, ptr %p{k}"]
        lines += [f"store {kind} %a{k}, ptr %p{k}"]
    lines.append(f"call void @witness.stop(i64 {request})")
    value = ""
    for k, kind in enumerate(members(result)):
        lines += [
            f"%q{k} = getelementptr i64, ptr %t, i64 {place_of_slot(k)}",
            f"%r{k} = load {kind}, ptr %q{k}",
        ]
        if result.startswith("{"):
            lines += [f"%s{k} = insertvalue {result} {value or 'poison'}, {kind} %r{k}, {k}"]
            value = f"%s{k}"
        else:
            value = f"%r{k}"
    return "\n".join([*lines, f"ret {result} {value}" if value else "ret void"])


def _access(number: int, line: str) -> str:
    """Check a load or store before it is made."""
    found = _ACCESS.match(line)
    if found is None:
        raise WitnessError(f"an access that the witness cannot read: {line.strip()[:100]}")
    kind = found[3] if found[2] == "load" else type_at(found[3])
    space, where, align = found[4], found[5], found[6]
    check, flat = "", where
    if space != "ptr":
        flat = f"%w.{number}"
        check = f"  {flat} = addrspacecast {space} {where} to ptr\n"
    size = nbytes(kind)
    touch = f"  call void @witness.touch(ptr {flat}, i64 {size}, i64 {align}, i64 {number})\n"
    return check + touch + line


def _division(number: int, line: str) -> str:
    """Check the operands of a division of whole numbers: the host would end the process."""
    found = re.match(r".* = ([us])(?:div|rem)(?: exact)? i(\d+) (\S+), (\S+)$", line)
    if found is None:
        raise WitnessError(f"a division that the witness cannot read: {line.strip()[:100]}")
    signed, bits, values = found[1] == "s", int(found[2]), found.groups()[2:]
    least = -(1 << bits - 1) if signed else 0
    if not signed and re.fullmatch(r"-?[1-9]\d*", values[1]):
        return line
    wide, lines = [], []
    for side, value in zip("ab", values):
        wide.append(f"%w.{side}.{number}" if bits < 64 else value)
        if bits < 64:
            lines.append(f"  {wide[-1]} = {'sext' if signed else 'zext'} i{bits} {value} to i64")
    if not signed:
        wide[0], least = "0", 1  # never the least
    lines.append(
        f"  call void @witness.divide(i64 {wide[0]}, i64 {wide[1]}, i64 {least}, i64 {number})"
    )
    return "\n".join([*lines, line])


def _call(code: TranslatedModule, known: re.Pattern[str], line: str) -> str:
    line = re.sub(r"( #\d+)?(, ![\w.]+( !\d+)?)*$", "", line)
    if found := re.match(rf"(.*\bcall (?:[\w]+ )*?)({TYPE}) asm (.*)$", line):
        return _assembly(code, known, found[1], found[2], found[3])
    found = re.match(r"(.*) @llvm\.nvvm\.([\w.]+)\((.*)$", line)
    if found:
        return f"{found[1]} @device.{found[2]}({found[3]}"
    name = re.search(r" @([\w.$]+)\(", line)
    if name is None:
        raise WitnessError(f"a call through a pointer: {line.strip()[:80]}")
    return line


def _assembly(
    code: TranslatedModule, known: re.Pattern[str], call: str, result: str, rest: str
) -> str:
    """Call a function of ours in place of PTX in the kernel, which is known by its one instruction."""
    found = re.match(r'(?:sideeffect )?(?:alignstack )?"([^"]*)", "[^"]*"\(', rest)
    assert found is not None, rest
    arguments = bracketed(rest, found.end() - 1)
    types = [type_at(part) for part in parts(arguments)]
    statements = [s.strip(" {}") for s in re.sub(r"\\0[9A]", " ", found[1]).split(";")]
    names = [
        s.split()[0] for s in statements if re.match(r"[a-z]", s) and not s.startswith("setp.")
    ]
    if not names and types == members(result):  # only what the compiler must not see through
        runs = [f"{kind}.{len(list(group))}" for kind, group in groupby(types)]
        symbol = re.sub(r"[^\w.]", "_", ".".join(["same", *runs]))
        code.defined[symbol] = _same(symbol, result, types)
        return f"{call}{result} @device.{symbol}({arguments})"
    name = " ".join(names)
    if settings := re.search(r"((?:, \d+)+);$", found[1]):
        name += ".by" + settings[1].replace(", ", ".")
    if name.endswith((".f32", ".f64")) and ".approx." in name:
        # Of libdevice; the intrinsics end so.
        name = name[:-4] + {".f32": ".f", ".f64": ".d"}[name[-4:]]
    return f"{call}{result} @device.{_define(code, known, name, result, types)}({arguments})"


def _same(symbol: str, result: str, types: list[str]) -> str:
    """Define a function that returns its arguments."""
    lines, last = [], "poison"
    for k, kind in enumerate(types):
        lines.append(f"%s{k} = insertvalue {result} {last}, {kind} %a{k}, {k}")
        last = f"%s{k}"
    listed = ", ".join(f"{kind} %a{k}" for k, kind in enumerate(types))
    body = "\n".join([*lines, f"ret {result} {last}"])
    return f"define {result} @device.{symbol}({listed}) {{\n{body}\n}}"


def _start(name: str, types: list[str]) -> str:
    """Define what a thread begins with: the kernel, called with the launch's parameters."""
    lines = ["%l = load ptr, ptr getelementptr (i64, ptr @witness.machine, i64 4)"]
    for k, kind in enumerate(types):
        lines += [
            f"%p{k} = getelementptr i8, ptr %l, i64 {16 * k}",
            f"%v{k} = load {kind}, ptr %p{k}",
        ]
    values = ", ".join(f"{kind} %v{k}" for k, kind in enumerate(types))
    body = "\n".join([*lines, f"call void @{name}({values})", "ret void"])
    return f"define void @witness.start.{name}() {{\n{body}\n}}"
