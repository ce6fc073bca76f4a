"""Make the sample modules of this folder and their inputs and results: see README.md. Needs jax;
the tests do not.

    python tests/data/generate.py [name ...]

Each sample is one function of `samples_*.py`: it gives a jitted function and its arguments.
Written beside this file: NAME.mlir (what `as_text()` prints), NAME.generic.mlir for a few (the
generic form) and NAME.npz (in0.., out0..).
"""

import os
import sys
from pathlib import Path

os.environ["XLA_FLAGS"] = "--xla_force_host_platform_device_count=8"
os.environ["JAX_PLATFORMS"] = "cpu"

import jax
import numpy as np
from samples_ops import OPS
from samples_sharded import SHARDED

HERE = Path(__file__).parent
# These are kept in generic form, too.
GENERIC = ("mlp_sharded", "constraint", "psum_shard_map", "scan", "square_erf")


def write(name: str, function: object, arguments: tuple[object, ...]) -> None:
    """Lower and run `function`, write its text and values."""
    lowered = function.lower(*arguments)
    (HERE / f"{name}.mlir").write_text(lowered.as_text() + "\n")
    if name in GENERIC:
        module = lowered.compiler_ir()
        text = module.operation.get_asm(print_generic_op_form=True)
        (HERE / f"{name}.generic.mlir").write_text(text + "\n")
    values = {}
    kept = lowered._lowering.compile_args["kept_var_idx"]  # jit drops arguments that nothing reads
    inputs = [x for i, x in enumerate(jax.tree.leaves(arguments)) if i in kept]
    for i, value in enumerate(inputs):
        values[f"in{i}"] = storable(value)
    for i, value in enumerate(jax.tree.leaves(function(*arguments))):
        values[f"out{i}"] = storable(value)
    np.savez_compressed(HERE / f"{name}.npz", **values)


def storable(value: object) -> np.ndarray:
    """The value as NumPy knows it: bfloat16 and float8 as their bits (unsigned integers of that
    width).
    """
    array = np.asarray(value)
    if array.dtype.kind == "V" or array.dtype.name.startswith(("bfloat", "float8")):
        return array.view({1: np.uint8, 2: np.uint16}[array.dtype.itemsize])
    return array


def main() -> None:
    chosen = sys.argv[1:]
    for name, make in {**OPS, **SHARDED}.items():
        if not chosen or name in chosen:
            write(name, *make())
            print(name)


if __name__ == "__main__":
    main()
