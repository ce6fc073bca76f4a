"""Serve as a back-end process: LLVM IR in, PTX out, until its input ends.

It runs as a script, alone with llvmlite, for LLVM ends the process on what it cannot do. Requests
and replies are frames: the length as 4 bytes, big-endian, then JSON in UTF-8.

request: text (LLVM IR that llvmlite's LLVM reads), chip, features ("+ptx83"), libdevice (path of
         the bitcode of the device's mathematics, "" where the text calls none of it)
reply:   ptx, or error
"""

from __future__ import annotations

import json
import os
import re
import sys
from functools import cache
from typing import Any, BinaryIO

TRIPLE = "nvptx64-nvidia-cuda"
OPTIONS = (
    "--nvptx-short-ptr",  # shared memory has 32-bit addresses
    "--nvvm-reflect-add=__CUDA_PREC_SQRT=1",  # square roots to the last bit, as divisions are
)


def receive(stream: BinaryIO) -> Any:
    """Read the next frame's value; None when there is none."""
    head = stream.read(4)
    if len(head) < 4:
        return None
    return json.loads(stream.read(int.from_bytes(head, "big")))


def send(stream: BinaryIO, value: object) -> None:
    """Write a frame."""
    data = json.dumps(value).encode()
    stream.write(len(data).to_bytes(4, "big") + data)
    stream.flush()


def to_ptx(text: str, chip: str, features: str, libdevice: str) -> str:
    """Compile a device module to PTX. Raises RuntimeError for what LLVM reports instead of ending the process."""
    llvm, machine = _llvm(), _machine(chip, features)
    context = llvm.create_context()
    module = llvm.parse_assembly(text, context=context)
    module.triple, module.data_layout = TRIPLE, str(machine.target_data)
    module.verify()
    defined = [function for function in module.functions if not function.is_declaration]
    kernels = {f.name for f in defined if "ptx_kernel" in str(f).split("{", 1)[0]}
    if libdevice:
        with open(libdevice, "rb") as file:
            library = llvm.parse_bitcode(file.read(), context=context)
        library.triple, library.data_layout = TRIPLE, module.data_layout
        module.link_in(library)
    for function in module.functions:
        if not function.is_declaration and function.name not in kernels:
            function.linkage = "internal"  # what nobody calls then goes
    tuning = llvm.create_pipeline_tuning_options(speed_level=3)
    tuning.loop_unrolling = True
    builder = llvm.create_pass_builder(machine, tuning)
    builder.getModulePassManager().run(module, builder)
    ptx: str = machine.emit_assembly(module)
    if unknown := _externals(ptx):
        raise RuntimeError(f"no such function on the device: {', '.join(unknown)}")
    return ptx


def _externals(ptx: str) -> list[str]:
    """Return the functions that the PTX calls and does not have, also intrinsics that this LLVM does not know."""
    result = r"(?:\([^)]*\)\s*)?"  # in brackets before the name
    return re.findall(rf"^\.extern \.func\s*{result}([\w$.]+)", ptx, re.MULTILINE)


@cache
def _llvm() -> Any:
    import llvmlite.binding as llvm

    for option in OPTIONS:
        llvm.set_option("meshweave", option)
    llvm.initialize_all_targets()
    llvm.initialize_all_asmprinters()
    return llvm


@cache
def _machine(chip: str, features: str) -> Any:
    target = _llvm().Target.from_triple(TRIPLE)
    return target.create_target_machine(cpu=chip, features=features, opt=3)


def serve() -> None:
    """Answer requests from the standard input; whatever else is printed goes to the standard error."""
    replies = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)
    while (request := receive(sys.stdin.buffer)) is not None:
        try:
            reply = {"ptx": to_ptx(**request)}
        except Exception as error:  # any of them is this request's failure, not the process's
            reply = {"error": f"{error}".strip() or type(error).__name__}
        send(replies, reply)


if __name__ == "__main__":
    serve()
