"""Define what NVPTX's intrinsics compute for one thread, in LLVM IR of the host.

The functions are called `@device.NAME`, NAME being that of the intrinsic behind `llvm.nvvm.`. Approximations
are computed in f64 and rounded; directed roundings are those of the host's own instructions.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

_KINDS = {"f": "float", "d": "double", "f32": "float", "f64": "double"}
_SHORT = {"float": "f32", "double": "f64"}
_CONTROL = {"rn": 0x1F80, "rm": 0x3F80, "rp": 0x5F80, "rz": 0x7F80}  # of the host's MXCSR
_PLAIN = {"add": "fadd", "sub": "fsub", "mul": "fmul", "div": "fdiv"}
_INTEGERS = {"i": (32, "s"), "ui": (32, "u"), "ll": (64, "s"), "ull": (64, "u")}
_WHOLE = {"rn": "roundeven", "rz": "trunc", "rm": "floor", "rp": "ceil"}
_LIBRARY = {"ex2": "exp2", "lg2": "log2", "sin": "sin", "cos": "cos", "tanh": "tanh"}
_ONE_OF_HOST = {
    "floor": "floor",
    "ceil": "ceil",
    "trunc": "trunc",
    "round": "roundeven",
    "fabs": "fabs",
}
_TWO_OF_HOST = {"fmin": "minimumnum", "fmax": "maximumnum"}

_FLUSH = """define internal float @witness.flush(float %x) {
  %size = call float @llvm.fabs.f32(float %x)
  %small = fcmp olt float %size, 0x3810000000000000
  %zero = call float @llvm.copysign.f32(float 0.0, float %x)
  %r = select i1 %small, float %zero, float %x
  ret float %r
}"""
# What LLVM calls to round to narrow floats: from f64 by way of f32 rounded to odd, which a second rounding keeps right.
_NARROW = """define internal float @witness.odd(double %x) {
  %f = call float @witness.down(double %x)
  %back = fpext float %f to double
  %same = fcmp ueq double %back, %x
  %b = bitcast float %f to i32
  %o = or i32 %b, 1
  %odd = bitcast i32 %o to float
  %r = select i1 %same, float %f, float %odd
  ret float %r
}
define bfloat @__truncsfbf2(float %x) {
  %b = bitcast float %x to i32
  %top = lshr i32 %b, 16
  %last = and i32 %top, 1
  %half = add i32 %last, 32767
  %sum = add i32 %b, %half
  %near = lshr i32 %sum, 16
  %quiet = or i32 %top, 64
  %nan = fcmp uno float %x, %x
  %c = select i1 %nan, i32 %quiet, i32 %near
  %s = trunc i32 %c to i16
  %r = bitcast i16 %s to bfloat
  ret bfloat %r
}
define bfloat @__truncdfbf2(double %x) {
  %f = call float @witness.odd(double %x)
  %r = call bfloat @__truncsfbf2(float %f)
  ret bfloat %r
}
define half @__truncdfhf2(double %x) {
  %f = call float @witness.odd(double %x)
  %r = fptrunc float %f to half
  ret half %r
}"""


def helpers() -> str:
    """Return the functions that bodies here, and the host's code of f16 and bf16, call."""
    odd = f"define internal float @witness.down(double %a0) {{\n{_narrowed('rz')}\n}}"
    return "\n".join([_FLUSH, _NARROW, odd])


def body(name: str, result: str) -> str | None:
    """Return the body of what an intrinsic does with %a0, %a1, ..; None where it is not one of these."""
    if name in _SIMPLE:
        return _SIMPLE[name]
    if name.startswith("setmaxnreg."):
        return "ret void"  # how many registers a thread has changes no result
    if ".ftz" in name:
        return _flushed(name, result)
    for pattern, make in _FAMILIES:
        if found := re.fullmatch(pattern, name):
            return make(*found.groups())
    return None


def _flushed(name: str, result: str) -> str | None:
    """Compute with subnormals of f32 taken for zeros, and made zeros."""
    inner = body(name.replace(".ftz", ""), result)
    if inner is None:
        return None
    used = sorted(set(re.findall(r"float %a(\d)", inner)))
    lines = [f"%b{k} = call float @witness.flush(float %a{k})" for k in used]
    for k in used:
        inner = re.sub(rf"%a{k}\b", f"%b{k}", inner)
    if result == "float":
        flushed = r"%flushed = call float @witness.flush(float \1)\nret float %flushed"
        inner = re.sub(r"ret float (%\w+)", flushed, inner)
    return "\n".join([*lines, inner])


def _arithmetic(op: str, mode: str, letter: str) -> str:
    kind = _KINDS[letter]
    if mode == "rn":
        return _nearest(op, kind)
    host = "ss" if kind == "float" else "sd"
    if op == "fma":
        code, count, ties = f"vfmadd213{host} $3, $2, $0", 3, "0,x,x"
    elif op == "sqrt":
        code, count, ties = f"vsqrt{host} $1, $1, $0", 1, "x"
    else:
        code, count, ties = f"v{'div' if op == 'rcp' else op}{host} $2, $1, $0", 2, "x,x"
    values = (
        [f"{kind} 1.0", f"{kind} %a0"] if op == "rcp" else [f"{kind} %a{k}" for k in range(count)]
    )
    return _directed(code, kind, ties, values, mode)


def _directed(code: str, kind: str, ties: str, values: Sequence[str], mode: str) -> str:
    """Run an instruction of the host under another rounding."""
    at = len(values) + 1
    text = f"ldmxcsr (${at})\\0A{code}\\0Aldmxcsr (${at + 1})"
    return f"""%m = alloca i32
%n = alloca i32
store i32 {_CONTROL[mode]}, ptr %m
store i32 {_CONTROL["rn"]}, ptr %n
%r = call {kind} asm sideeffect "{text}", "=&x,{ties},r,r,~{{memory}}"({", ".join(values)}, ptr %m, ptr %n)
ret {kind} %r"""


def _nearest(op: str, kind: str) -> str:
    if op in _PLAIN:
        made = f"{_PLAIN[op]} {kind} %a0, %a1"
    elif op == "rcp":
        made = f"fdiv {kind} 1.0, %a0"
    else:
        count = 3 if op == "fma" else 1
        listed = ", ".join(f"{kind} %a{k}" for k in range(count))
        made = f"call {kind} @llvm.{op}.{_SHORT[kind]}({listed})"
    return f"%r = {made}\nret {kind} %r"


def _of_host(name: str, count: int, letter: str) -> str:
    kind = _KINDS[letter]
    listed = ", ".join(f"{kind} %a{k}" for k in range(count))
    return f"%r = call {kind} @llvm.{name}.{_SHORT[kind]}({listed})\nret {kind} %r"


def _approximated(op: str, letter: str) -> str:
    """Compute in f64, and round; of f64, as it is."""
    kind = _KINDS[letter]
    lines = ["%x = fpext float %a0 to double" if kind == "float" else "%x = fadd double %a0, -0.0"]
    if op in _LIBRARY:
        lines.append(f"%y = call double @llvm.{_LIBRARY[op]}.f64(double %x)")
    elif op == "rcp":
        lines.append("%y = fdiv double 1.0, %x")
    elif op == "div":
        lines += ["%z = fpext float %a1 to double", "%y = fdiv double %x, %z"]
    else:
        lines.append("%s = call double @llvm.sqrt.f64(double %x)")
        lines.append("%y = fdiv double 1.0, %s" if op == "rsqrt" else "%y = fadd double %s, -0.0")
    lines.append(
        "%r = fptrunc double %y to float\nret float %r" if kind == "float" else "ret double %y"
    )
    return "\n".join(lines)


def _to_integer(source: str, target: str, mode: str) -> str:
    """Round, and keep within the limits; a NaN is 0, but where 64 bits are involved the highest bit."""
    kind, (bits, sign) = _KINDS[source], _INTEGERS[target]
    nan = -(1 << bits - 1) if kind == "double" or bits == 64 else 0
    short = _SHORT[kind]
    return f"""%w = call {kind} @llvm.{_WHOLE[mode]}.{short}({kind} %a0)
%s = call i{bits} @llvm.fpto{sign}i.sat.i{bits}.{short}({kind} %w)
%nan = fcmp uno {kind} %a0, %a0
%r = select i1 %nan, i{bits} {nan}, i{bits} %s
ret i{bits} %r"""


def _from_integer(source: str, target: str) -> str:
    (bits, sign), kind = _INTEGERS[source], _KINDS[target]
    return f"%r = {sign}itofp i{bits} %a0 to {kind}\nret {kind} %r"


def _narrowed(mode: str) -> str:
    if mode == "rn":
        return "%r = fptrunc double %a0 to float\nret float %r"
    # The upper half of the first source is what the result's upper half becomes: any will do.
    text = "ldmxcsr ($2)\\0Avcvtsd2ss $1, $1, $0\\0Aldmxcsr ($3)"
    return f"""%m = alloca i32
%n = alloca i32
store i32 {_CONTROL[mode]}, ptr %m
store i32 {_CONTROL["rn"]}, ptr %n
%r = call float asm sideeffect "{text}", "=&x,x,r,r,~{{memory}}"(double %a0, ptr %m, ptr %n)
ret float %r"""


def _high_product(target: str) -> str:
    bits, sign = _INTEGERS[target]
    wide = 2 * bits
    return f"""%x = {sign}ext i{bits} %a0 to i{wide}
%y = {sign}ext i{bits} %a1 to i{wide}
%p = mul i{wide} %x, %y
%h = lshr i{wide} %p, {bits}
%r = trunc i{wide} %h to i{bits}
ret i{bits} %r""".replace("uext", "zext")


def _upper(lines: str) -> str:
    """Compute %y of %d with the upper halves of operand and result alone; subnormals are zeros."""
    return f"""%b = bitcast double %a0 to i64
%u = and i64 %b, -4294967296
%x = bitcast i64 %u to double
%size = call double @llvm.fabs.f64(double %x)
%small = fcmp olt double %size, 0x10000000000000
%none = call double @llvm.copysign.f64(double 0.0, double %x)
%d = select i1 %small, double %none, double %x
{lines}
%c = bitcast double %y to i64
%v = and i64 %c, -4294967296
%r = bitcast i64 %v to double
%tiny = call double @llvm.fabs.f64(double %r)
%under = fcmp olt double %tiny, 0x10000000000000
%zero = call double @llvm.copysign.f64(double 0.0, double %r)
%s0 = select i1 %under, double %zero, double %r
ret double %s0"""


def _double_width(bits: int, operands: int = 3) -> str:
    """Return the lower and the upper half of a product, to which a third operand is added."""
    wide = 2 * bits
    result = f"{{ i{bits}, i{bits} }}"
    widened = "\n".join(f"%w{k} = zext i{bits} %a{k} to i{wide}" for k in range(operands))
    return f"""{widened}
%p = mul i{wide} %w0, %w1
%s = add i{wide} %p, {"%w2" if operands == 3 else 0}
%l = trunc i{wide} %s to i{bits}
%u = lshr i{wide} %s, {bits}
%h = trunc i{wide} %u to i{bits}
%q = insertvalue {result} poison, i{bits} %l, 0
%r = insertvalue {result} %q, i{bits} %h, 1
ret {result} %r"""


def _wide(op: str) -> str:
    """Add or subtract two numbers of 128 bits, given and returned in halves."""
    halves = [f"%w{k} = zext i64 %a{k} to i128" for k in range(4)]
    whole = [f"%h{k} = shl i128 %w{k}, 64\n%x{k} = or i128 %h{k}, %w{k - 1}" for k in (1, 3)]
    return (
        "\n".join([*halves, *whole])
        + f"""
%d = {op} i128 %x1, %x3
%l = trunc i128 %d to i64
%s = lshr i128 %d, 64
%u = trunc i128 %s to i64
%q = insertvalue {{ i64, i64 }} poison, i64 %l, 0
%r = insertvalue {{ i64, i64 }} %q, i64 %u, 1
ret {{ i64, i64 }} %r"""
    )


_LETTERS, _NUMBERS = "(f|d|f32|f64)", "(i|ui|ll|ull)"
_FAMILIES = (
    (rf"(add|sub|mul|fma|div|sqrt|rcp)\.(rn|rz|rm|rp)\.{_LETTERS}", _arithmetic),
    (rf"(ex2|lg2|sin|cos|tanh|rcp|rsqrt|sqrt|div)\.approx\.{_LETTERS}", _approximated),
    (rf"(floor|ceil|trunc|round|fabs)\.{_LETTERS}", lambda op, kind: _of_host(_ONE_OF_HOST[op], 1, kind)),
    (rf"(fmin|fmax)\.{_LETTERS}", lambda op, kind: _of_host(_TWO_OF_HOST[op], 2, kind)),
    (rf"(f|d)2{_NUMBERS}\.(rn|rz|rm|rp)", _to_integer),
    (rf"{_NUMBERS}2(f|d)\.rn", _from_integer),
    (r"d2f\.(rn|rz|rm|rp)", _narrowed),
    (rf"mulhi\.{_NUMBERS}", _high_product),
)  # fmt: skip

_SIMPLE = {
    "lohi.i2d": """%l = zext i32 %a0 to i64
%h = zext i32 %a1 to i64
%u = shl i64 %h, 32
%b = or i64 %u, %l
%r = bitcast i64 %b to double
ret double %r""",
    "d2i.lo": "%b = bitcast double %a0 to i64\n%r = trunc i64 %b to i32\nret i32 %r",
    "d2i.hi": "%b = bitcast double %a0 to i64\n%h = lshr i64 %b, 32\n%r = trunc i64 %h to i32\nret i32 %r",
    "f2h.rn": "%h = fptrunc float %a0 to half\n%r = bitcast half %h to i16\nret i16 %r",
    "rcp.approx.ftz.d": _upper("%y = fdiv double 1.0, %d"),
    "rsqrt.approx.ftz.d": _upper("%s = call double @llvm.sqrt.f64(double %d)\n%y = fdiv double 1.0, %s"),
    # Products with sums of twice the width, which libdevice writes in PTX: named by their instructions.
    "mov.b64 mov.b64 mov.b64 mov.b64 sub.cc.u32 subc.cc.u32 subc.cc.u32 subc.u32 mov.b64 mov.b64": _wide("sub"),
    "mov.b64 mov.b64 mov.b64 mov.b64 add.cc.u32 addc.cc.u32 addc.cc.u32 addc.u32 mov.b64 mov.b64": _wide("add"),
    "mad.lo.cc.u32 madc.hi.u32": _double_width(32),
    "mov.b64 mov.b64 mul.lo.u32 mul.hi.u32 mad.lo.cc.u32 madc.hi.u32 mad.lo.cc.u32 madc.hi.cc.u32 madc.hi.u32 "
    "mad.lo.cc.u32 addc.u32 mov.b64 mov.b64": _double_width(64, 2),
    "mov.b64 mov.b64 mov.b64 mad.lo.cc.u32 madc.hi.cc.u32 madc.hi.u32 mad.lo.cc.u32 madc.hi.cc.u32 madc.hi.u32 "
    "mad.lo.cc.u32 madc.lo.cc.u32 addc.u32 mov.b64 mov.b64": _double_width(64),
    "saturate.f": """%l = call float @llvm.maximumnum.f32(float %a0, float 0.0)
%h = call float @llvm.minimumnum.f32(float %l, float 1.0)
%nan = fcmp uno float %a0, %a0
%r = select i1 %nan, float 0.0, float %h
ret float %r""",
    "f2tf32.rna": """%b = bitcast float %a0 to i32
%e = and i32 %b, 2139095040
%special = icmp eq i32 %e, 2139095040
%s = add i32 %b, 4096
%n = and i32 %s, -8192
%r = select i1 %special, i32 %b, i32 %n
ret i32 %r""",
    **dict.fromkeys(
        ("fence.proxy.async.shared_cta", "fence.proxy.async", "membar.cta", "membar.gl", "membar.sys",
         "wgmma.fence.sync.aligned"),
        "ret void",  # the order in which threads run here is stricter
    ),
}  # fmt: skip
