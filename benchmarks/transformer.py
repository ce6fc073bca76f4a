"""A 12-layer transformer: its rate against its products alone in OpenBLAS, and its speed-up on more cores or ranks."""

import argparse
import ctypes
import time

import numpy as np

from benchmarks.common import best, jax_peer, milliseconds, show, table
from benchmarks.transformer_text import Size, transformer, weights
from meshweave.api.program import Program, build
from meshweave.runtime.arrays.array import place
from meshweave.runtime.cores import usable_cores
from meshweave.runtime.libraries import openblas
from meshweave.runtime.local.engine import LocalEngine


def gemm_rate(size: Size, repeat: int = 3) -> float:
    """FLOP/s of one layer's matrix products alone: the same calls of cblas_sgemm in a row on one thread."""
    sgemm = openblas().scipy_cblas_sgemm
    sgemm.restype = None
    i32, f32, ptr = ctypes.c_int, ctypes.c_float, ctypes.c_void_p
    sgemm.argtypes = [i32] * 6 + [f32, ptr, i32, ptr, i32, f32, ptr, i32]
    calls = []
    for count, m, n, k in size.gemms:
        a, b, c = (
            np.random.default_rng(0).standard_normal(s).astype(np.float32)
            for s in ((m, k), (k, n), (m, n))
        )
        call = (
            101,
            111,
            111,
            m,
            n,
            k,
            1.0,
            a.ctypes.data,
            k,
            b.ctypes.data,
            n,
            0.0,
            c.ctypes.data,
            n,
        )
        calls.append((count, call, (a, b, c)))

    def layer() -> None:
        for count, call, _ in calls:
            for _ in range(count):
                sgemm(*call)

    return size.flops / size.layers / best(layer, repeat)


def arguments(size: Size) -> list[np.ndarray]:
    """x and the parameters: small normal numbers, gains near 1."""
    rng = np.random.default_rng(0)
    values = [rng.standard_normal((size.batch, size.seq, size.width)).astype(np.float32)]
    for _ in range(size.layers):
        for i, (shape, _) in enumerate(weights(size)):
            gain = 1.0 if i in (0, 6) else 0.0
            values.append((gain + 0.02 * rng.standard_normal(shape)).astype(np.float32))
    return values


def main(options: argparse.Namespace) -> None:
    """Print the table."""
    size = Size(12, batch=2)
    text, values, rate = transformer(size), arguments(size), gemm_rate(size)
    made = table(
        f"12 layers, batch {size.batch}, S=512, E=768, 12 heads, FFN 3072, f32; "
        f"its products alone: {rate / 1e9:.1f} GFLOP/s on one core",
        "mesh", "cores", "compile", "step", "GFLOP/s", "of products", "speed-up", "peak MiB", "JAX step", "JAX/ours",
    )  # fmt: skip
    one, every = None, usable_cores()
    for mesh, cores in (("dp=1,tp=1", 1), ("dp=1,tp=1", every), ("dp=2,tp=1", 1), ("dp=1,tp=2", 1)):
        began = time.perf_counter()
        bundle = build(text, mesh=mesh)
        compile_ = time.perf_counter() - began
        with Program(bundle, LocalEngine(cores=cores)) as program:
            call = program.executable.bind(place(program.executable, values))
            step = best(call, options.repeat)
            peak = program.peak_bytes
        used = program.mesh.nranks * cores
        one = one or step
        peer = {}
        if used > 1:  # JAX uses all cores for one device too
            peer = jax_peer("transformer", "--mesh", mesh, python=options.jax_python) or {}
        theirs = peer.get("run")
        made.add_row(
            mesh, str(used), milliseconds(compile_), milliseconds(step), f"{size.flops / step / 1e9:.1f}",
            f"{size.flops / step / rate / used:.2f}", f"{one / step:.2f}", f"{peak / 2**20:.1f}",
            milliseconds(theirs), f"{theirs / step:.2f}" if theirs else "-",
        )  # fmt: skip
    show(made)
