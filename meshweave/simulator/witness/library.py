"""Link the functions of libdevice that a kernel calls, with what they ask of the compiler answered."""

from __future__ import annotations

import re
from functools import cache
from typing import Any

_ASKED = re.compile(r"(%\S+ = )(?:tail )?call i32 @__nvvm_reflect\(ptr (@[\w.$]+)\)[^\n]*")


def linked(llvm: Any, text: str, libdevice: str, architecture: int) -> str:
    """Return a module as text, with those functions of libdevice that it calls. It is not optimised."""
    context = llvm.create_context()
    module = llvm.parse_assembly(text, context=context)
    needed = tuple(sorted({f.name for f in module.functions if f.name.startswith("__nv_")}))
    if needed:
        library = llvm.parse_assembly(
            _functions(llvm, needed, libdevice, architecture), context=context
        )
        library.triple, library.data_layout = module.triple, module.data_layout
        module.link_in(library)
    return str(module)


@cache
def _functions(llvm: Any, needed: tuple[str, ...], libdevice: str, architecture: int) -> str:
    """Return functions of libdevice and what they call. Branches that are not taken on this architecture are gone."""
    with open(libdevice, "rb") as file:
        module = llvm.parse_bitcode(file.read(), context=llvm.create_context())
    _keep(llvm, module, needed, ["globaldce"])
    text = str(module)
    names = dict(re.findall(r'^(@[\w.$]+) = .* c"(\w+)\\00"', text, re.MULTILINE))
    answers = {"__CUDA_FTZ": 0, "__CUDA_PREC_SQRT": 1, "__CUDA_ARCH": architecture}
    text = _ASKED.sub(lambda f: f"{f[1]}add i32 0, {answers[names[f[2]]]}", text)
    module = llvm.parse_assembly(text, context=llvm.create_context())
    _keep(llvm, module, needed, ["sccp", "simplifycfg", "globaldce"])
    return re.sub(r"^target .*\n", "", str(module), flags=re.MULTILINE)


def _keep(llvm: Any, module: Any, needed: tuple[str, ...], passes: list[str]) -> None:
    """Make all but some functions internal, and run passes."""
    for function in module.functions:
        if not function.is_declaration and function.name not in needed:
            function.linkage = "internal"
    machine = llvm.Target.from_default_triple().create_target_machine()
    builder = llvm.create_pass_builder(machine, llvm.create_pipeline_tuning_options(speed_level=1))
    manager = llvm.create_new_module_pass_manager()
    for name in passes:
        {"globaldce": manager.add_global_dead_code_eliminate_pass, "sccp": manager.add_sccp_pass,
         "simplifycfg": manager.add_simplify_cfg_pass}[name]()  # fmt: skip
    manager.run(module, builder)
