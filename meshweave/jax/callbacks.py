"""Take the functions of Python that a JAX program calls while it runs: pure callbacks, and what prints or raises.

JAX lowers `jax.pure_callback`, `jax.debug.print` and others to calls of @xla_ffi_python_cpu_callback with a number in
the list of the program's functions. Here each becomes a call of @meshweave.host with the number that this process
knows the function by.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from importlib import import_module
from typing import TYPE_CHECKING, Any

import numpy as np

from meshweave.bundle import public_dtype
from meshweave.errors import CompileError
from meshweave.frontends.stablehlo import CALLBACK
from meshweave.jax.captured import JaxModule, JaxOp, ops_in
from meshweave.jax.tokens import has_token, is_token, take_tokens
from meshweave.runtime.forks import new_reentrant_lock
from meshweave.runtime.host import ArrayKind, PythonFunction, registered

if TYPE_CHECKING:  # JAX is optional, and takes a second to import
    from jax.extend.core import Jaxpr

_TARGET = "xla_ffi_python_cpu_callback"
_JAX_ALONE = ("mhlo.backend_config", "api_version", "sdy.sharding")
_NAME = re.compile(r'"[^"]*?/?(\w+):?"')
_WIDTHS = ("8", "16", "32", "64")
_UNSIGNED = {f"ui{n}": np.dtype(f"uint{n}") for n in _WIDTHS}
_DTYPES = (*[f"i{n}" for n in ("1", *_WIDTHS)], *[f"f{n}" for n in _WIDTHS[1:]], "bf16")
"""Element types of arrays that functions take, beside the unsigned ones."""


def take_callbacks(module: JaxModule, functions: Sequence[Callable[..., Any]]) -> None:
    """Give the functions that a module calls numbers of this process. functions: by JAX's own numbers.

    Raises CompileError for arrays that no function here takes: complex ones, and floats and integers below 8 bits.
    """
    if not functions:  # most programs: to look at every op takes long
        return
    ir = import_module("jax.extend.mlir.ir")
    with module.context:
        for op in [op for op in ops_in(module) if op.name == "stablehlo.custom_call"]:
            if ir.StringAttr(op.attributes["call_target_name"]).value != _TARGET:
                continue
            config = ir.DictAttr(op.attributes["mhlo.backend_config"])
            call = functions[ir.IntegerAttr(config["index"]).value]
            function = _described(op, _called(call, has_token(op.operands)))
            op.attributes["call_target_name"] = ir.StringAttr.get(CALLBACK)
            said = f"{registered(function)} {function.name}"
            op.attributes["backend_config"] = ir.StringAttr.get(said)
            for name in _JAX_ALONE:
                if name in op.attributes:
                    del op.attributes[name]
        for op in [op for op in ops_in(module) if op.name == "sdy.mesh"]:
            if ir.StringAttr(op.attributes["sym_name"]).value.startswith("maximal_mesh"):
                op.erase()  # of the device that would call them
    take_tokens(module)


_OF_DEVICES = ("inspect_sharding", "custom_partitioning")
_LOWERING = new_reentrant_lock()


@contextmanager
def without_devices() -> Iterator[None]:
    """Let JAX lower calls of Python for an abstract mesh: it asks for devices then, and does nothing with them.

    It refuses ordered calls that each device would make for itself: here rank 0 makes them.
    """
    dispatch, effects = (import_module(f"jax._src.{name}") for name in ("dispatch", "effects"))
    with _LOWERING, ExitStack() as after:
        for module, name, value in (
            (dispatch, "jaxpr_has_prim_requiring_devices", lambda jaxpr: any(of_devices(jaxpr))),
            (effects, "shardable_ordered_effects", getattr(effects, "ordered_effects", None)),
        ):
            if (theirs := getattr(module, name, None)) is not None:
                setattr(module, name, value)
                after.callback(setattr, module, name, theirs)
        yield


def of_devices(jaxpr: Jaxpr) -> Iterator[tuple[str, str]]:
    """Give the name of each primitive that asks for devices, and its line in the user's file."""
    from jax.extend.core import jaxprs_in_params
    from jax.extend.source_info_util import summarize

    for equation in jaxpr.eqns:
        if equation.primitive.name in _OF_DEVICES:
            yield equation.primitive.name, summarize(equation.source_info).partition(" (")[0]
        for inner in jaxprs_in_params(equation.params):
            yield from of_devices(inner)


def _described(op: JaxOp, call: Callable[..., Any]) -> PythonFunction:
    operands, results = (
        tuple([_kind(value.type, op) for value in values if not is_token(value)])
        for values in (op.operands, op.results)
    )
    return PythonFunction(_name(op), call, operands, results)


def _called(call: Callable[..., Any], in_order: bool) -> Callable[..., Any]:
    """Return a function of arrays alone, whose floats may have 64 bits where those of the program do.

    in_order: JAX's takes and gives a token besides.
    """
    jax = import_module("jax")
    wide = jax.config.jax_enable_x64  # of this thread; ranks call it in theirs

    def called(*arrays: Any) -> Any:
        with jax.enable_x64(wide):
            return call(None, *arrays)[1:] if in_order else call(*arrays)

    return called


def _kind(type_: Any, op: JaxOp) -> ArrayKind:
    element = str(type_.element_type)
    if element not in _DTYPES and element not in _UNSIGNED:
        raise CompileError(f"not supported: {_name(op)} of Python with arrays of {element}")
    return ArrayKind(tuple(type_.shape), _UNSIGNED.get(element) or public_dtype(element))


def _name(op: JaxOp) -> str:
    """Return what JAX calls the op: `pure_callback`, `debug_print`."""
    found = _NAME.search(str(op.location))
    return found[1] if found else "a callback"
