"""Reductions of elements, as text: functions and loop bodies that combine two values of a kind and dtype.

Narrow floats are computed in f32; max and min of floats give NaN when either is.
"""

from __future__ import annotations

NBYTES = {"f64": 8, "f32": 4, "f16": 2, "bf16": 2, "i64": 8, "i32": 4, "i16": 2, "i8": 1, "i1": 1}
_NARROW = ("f16", "bf16")


def memory_types(dtype: str) -> tuple[str, str]:
    """The type of an element in memory, and of the running value of its reduction."""
    memory = "i8" if dtype == "i1" else dtype
    return memory, "f32" if dtype in _NARROW else memory


def combine(kind: str, dtype: str, left: str, right: str) -> str:
    """The op that reduces two running values: max and min of floats give NaN when either is."""
    _, wide = memory_types(dtype)
    if wide.startswith("f"):
        name = {"sum": "addf", "prod": "mulf", "max": "maximumf", "min": "minimumf"}[kind]
    elif dtype == "i1":
        name = {"max": "maxui", "min": "minui"}[kind]
    else:
        name = {"sum": "addi", "prod": "muli", "max": "maxsi", "min": "minsi"}[kind]
    return f"arith.{name} {left}, {right} : {wide}"


def reduce_block(kind: str, dtype: str) -> str:
    """Functions on at most BLOCK elements: begin the running value, reduce one member into it, end
    it.

    Their pointers never overlap: the running value is a buffer of the caller.
    """
    memory, wide = memory_types(dtype)
    name = f"{kind}_{dtype}"
    load = "%x = llvm.load %p : !llvm.ptr -> " + memory
    widen = f"\n    %v = arith.extf %x : {memory} to {wide}" if memory != wide else ""
    value = "%v" if memory != wide else "%x"
    pointers = f"""
    %p = llvm.getelementptr %src[%i] : (!llvm.ptr, i64) -> !llvm.ptr, {memory}
    %a = llvm.getelementptr %acc[%i] : (!llvm.ptr, i64) -> !llvm.ptr, {wide}
    {load}{widen}"""
    loop = """
  %c0 = arith.constant 0 : i64
  %c1 = arith.constant 1 : i64
  scf.for %i = %c0 to %n step %c1 : i64 {"""
    arguments = "%acc: !llvm.ptr {llvm.noalias}, %src: !llvm.ptr {llvm.noalias}, %n: i64"
    text = f"""
llvm.func @mw_begin_{name}({arguments}) attributes {{no_inline}} {{
{loop}{pointers}
    llvm.store {value}, %a : {wide}, !llvm.ptr
  }}
  llvm.return
}}
llvm.func @mw_add_{name}({arguments}) attributes {{no_inline}} {{
{loop}{pointers}
    %old = llvm.load %a : !llvm.ptr -> {wide}
    %new = {combine(kind, dtype, "%old", value)}
    llvm.store %new, %a : {wide}, !llvm.ptr
  }}
  llvm.return
}}
"""
    if memory == wide:
        return text
    return f"""{text}
llvm.func @mw_round_{name}({arguments}) attributes {{no_inline}} {{
{loop}
    %p = llvm.getelementptr %src[%i] : (!llvm.ptr, i64) -> !llvm.ptr, {wide}
    %a = llvm.getelementptr %acc[%i] : (!llvm.ptr, i64) -> !llvm.ptr, {memory}
    %x = llvm.load %p : !llvm.ptr -> {wide}
    %v = arith.truncf %x : {wide} to {memory}
    llvm.store %v, %a : {memory}, !llvm.ptr
  }}
  llvm.return
}}
"""


def reduce_pair(kind: str, dtype: str) -> str:
    """Body of a loop over %i that reduces element %i of %in into %inout."""
    memory, wide = memory_types(dtype)
    lines = [
        f"%p = llvm.getelementptr %in[%i] : (!llvm.ptr, i64) -> !llvm.ptr, {memory}",
        f"%q = llvm.getelementptr %inout[%i] : (!llvm.ptr, i64) -> !llvm.ptr, {memory}",
        f"%x = llvm.load %p : !llvm.ptr -> {memory}",
        f"%y = llvm.load %q : !llvm.ptr -> {memory}",
    ]
    left, right, value = "%x", "%y", "%new"
    if memory != wide:
        lines += [
            f"%wide_x = arith.extf %x : {memory} to {wide}",
            f"%wide_y = arith.extf %y : {memory} to {wide}",
        ]
        left, right, value = "%wide_x", "%wide_y", "%narrow"
    lines.append(f"%new = {combine(kind, dtype, left, right)}")
    if memory != wide:
        lines.append(f"%narrow = arith.truncf %new : {wide} to {memory}")
    lines.append(f"llvm.store {value}, %q : {memory}, !llvm.ptr")
    return "\n".join("    " + line for line in lines)
