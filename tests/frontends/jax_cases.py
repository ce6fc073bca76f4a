"""What JAX users write, as cases: `jax_expressions.txt` has an expression a line, whose free names choose its arguments
(see `arguments`).

    python -m frontends.jax_cases [--types f32,i8,..] [--mesh x=2,y=2] [word ...]

prints for each expression that has a word in it whether meshweave gives what JAX gives: ok, refused (a clear error),
wrong, or crash. On a mesh of two axes the first dims of every argument lie over them. Run in tests/; needs jax.
"""

import ast
import json
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

FLOATS = ("f32", "f64", "f16", "bf16")
LAPACK = ("linalg", "decompositions", "complex")
"""Sections of what JAX computes in f32 and f64 only: by LAPACK, or with complex numbers."""
INTS = ("i32", "i8", "i16", "i64", "u8", "u16", "u32", "u64")
EXPRESSIONS = Path(__file__).with_name("jax_expressions.txt")
_WIDTHS = (8, 16, 32, 64)
DTYPES = {"f32": "float32", "f64": "float64", "f16": "float16", "bf16": "bfloat16", "bool": "bool"}
DTYPES |= {f"i{n}": f"int{n}" for n in _WIDTHS} | {f"u{n}": f"uint{n}" for n in _WIDTHS}
TOLERANCE = {"float32": 2e-5, "float64": 1e-11, "float16": 2e-3, "bfloat16": 1.6e-2}
"""Of each element, and of the largest one for those near zero."""

FLOAT_NAMES = frozenset(["x", "y", "p", "u", "v", "s", "t", "z", "img", "ker"])
INT_NAMES = frozenset(["i", "j", "n", "e"])
ANY_NAMES = frozenset(["a", "b", "c"])
FIXED_NAMES = frozenset(["k", "K", "l", "q", "f", "h", "o"])


class Case(NamedTuple):
    """An expression for arguments of one type. types: those it is worth trying."""

    section: str
    text: str
    names: tuple[str, ...]
    types: tuple[str, ...]


def cases() -> Iterator[Case]:
    """All expressions."""
    section = ""
    for line in EXPRESSIONS.read_text().splitlines():
        if line.startswith("["):
            section = line.strip("[]")
        elif line:
            yield _case(section, line)


def _case(section: str, text: str) -> Case:
    nodes = list(ast.walk(ast.parse(text)))
    bound = {node.arg for node in nodes if isinstance(node, ast.arg)}
    names = {node.id for node in nodes if isinstance(node, ast.Name)} - bound
    types: tuple[str, ...] = ("f32",)
    if names & FLOAT_NAMES:
        types = FLOATS if section not in LAPACK else ("f32", "f64")
    elif names & INT_NAMES:
        types = INTS
    elif names & ANY_NAMES:
        types = (*FLOATS, *INTS, "bool")
    known = FLOAT_NAMES | INT_NAMES | ANY_NAMES | FIXED_NAMES
    return Case(section, text, tuple(sorted(names & known)), types)


def arguments(names: tuple[str, ...], dtype: str) -> list[np.ndarray]:
    """Small arguments: floats normal (x, y), positive (p), within 1 (u), special ones (z); whole numbers small
    (i, j), positive (n), extreme (e); a, b, c of any type; k indices, K with some outside, l a scalar; q truth values.
    """
    rng = np.random.default_rng(5)
    normal = {
        "x": (3, 5), "y": (3, 5), "v": (7,), "s": (4, 4), "t": (2, 3, 4), "img": (1, 6, 5, 3), "ker": (3, 2, 3, 4),
    }  # fmt: skip
    values: dict[str, Any] = {n: rng.standard_normal(shape) for n, shape in normal.items()}
    values["p"], values["u"] = rng.uniform(0.1, 3, (3, 5)), rng.uniform(-0.95, 0.95, (3, 5))
    big = 6e4 if dtype == "float16" else 1e30
    special = [
        0.0,
        -0.0,
        np.inf,
        -np.inf,
        np.nan,
        1.0,
        -1.0,
        0.5,
        -2.5,
        big,
        -big,
        1e-3,
        -7.0,
        88.0,
        1.5,
    ]
    values["z"] = np.array(special).reshape(3, 5)
    low = 0 if dtype.startswith("u") or dtype == "bool" else -9
    values["i"], values["j"] = rng.integers(low, 10, (3, 5)), rng.integers(low, 10, (3, 5))
    values["n"] = rng.integers(1, 10, (3, 5))
    if dtype in ("float32", "float64", "float16", "bfloat16", "bool"):
        values["a"], values["b"], values["c"] = values["x"], values["y"], values["v"]
        if dtype == "bool":
            values |= {name: values[name] > 0 for name in "abc"}
    else:
        values["a"], values["b"], values["c"] = values["i"], values["j"], rng.integers(low, 10, 7)
        limits = np.iinfo(dtype)
        special = [0, 1, int(limits.min), int(limits.max), int(limits.max) // 2 + 1, 7, 3, 2]
        values["e"] = np.array((special * 2)[:15], dtype).reshape(3, 5)
    fixed = {
        "k": np.array([2, 0, 4, 1], np.int32), "K": np.array([2, -1, 7, -9], np.int32), "l": np.int32(1),
        "q": rng.standard_normal((3, 5)) > 0, "f": rng.standard_normal((3, 5)).astype(np.float32),
        "h": rng.standard_normal((2, 2)).astype(np.float16), "o": np.array([3, 200, 255], np.uint8),
    }  # fmt: skip
    if dtype == "bfloat16":
        import ml_dtypes

        kind: Any = ml_dtypes.bfloat16
    else:
        kind = np.dtype(dtype)
    return [fixed[n] if n in fixed else np.asarray(values[n]).astype(kind) for n in names]


def function(case: Case) -> Callable[..., Any]:
    """The expression as a function of its names."""
    import jax
    import jax.image
    import jax.numpy as jnp
    import jax.scipy.fft
    import jax.scipy.integrate
    import jax.scipy.interpolate
    import jax.scipy.ndimage
    import jax.scipy.signal
    import jax.scipy.stats
    from jax import lax

    return eval(
        f"lambda {', '.join(case.names)}: {case.text}",
        {"jax": jax, "jnp": jnp, "lax": lax, "NHWC": ("NHWC", "HWIO", "NHWC")},
    )


def differs(ours: Any, theirs: Any) -> str:
    """What is wrong with a result, or nothing."""
    name = theirs.dtype.name
    ours, theirs = np.asarray(ours), np.asarray(theirs)
    if name == "bfloat16":
        theirs = theirs.astype(np.float32)
        ours = ours.astype(np.float32)
    if ours.dtype != theirs.dtype or ours.shape != theirs.shape:
        return f"{ours.dtype}{list(ours.shape)}, not {theirs.dtype}{list(theirs.shape)}"
    if theirs.dtype.kind == "c":
        parts = [(getattr(ours, part), getattr(theirs, part)) for part in ("real", "imag")]
        return next(filter(None, (differs(*pair) for pair in parts)), "")
    if theirs.dtype.kind == "f":
        tolerance = TOLERANCE[name]
        finite = np.abs(theirs[np.isfinite(theirs)]).astype(np.float64)
        scale = min(float(finite.max(initial=0)), 1e3)
        same = np.isclose(
            ours.astype(np.float64), theirs.astype(np.float64), rtol=tolerance, atol=tolerance * scale, equal_nan=True
        )  # fmt: skip
    else:
        same = ours == theirs
    if same.all():
        return ""
    at = tuple(int(n) for n in np.argwhere(~same)[0])
    return f"{(~same).sum()} of {same.size}, at {list(at)} {ours[at]!r}, not {theirs[at]!r}"


def over_axes(ndim: int) -> str | None:
    """A layout over axes x and y, for an argument of so many dims."""
    return f"[{', '.join(['x', 'y', '_', '_', '_'][:ndim])}]" if ndim else None


def verdict(case: Case, dtype: str, options: dict[str, Any]) -> tuple[str, str]:
    """ok, refused, wrong, crash (an exception that is not ours) or absent (JAX itself refuses), and why."""
    import jax

    import meshweave as mw

    with jax.enable_x64("64" in dtype):
        args, fn = arguments(case.names, DTYPES[dtype]), function(case)
        try:
            wanted = jax.jit(fn)(*args)
        except Exception as error:
            return "absent", f"{type(error).__name__}: {error}"[:200]
        try:
            if "mesh" in options:
                options["in_shardings"] = tuple(over_axes(np.ndim(arg)) for arg in args)
            with mw.from_jax(fn, *args, **options) as compiled:
                got = compiled(*args)
                got = jax.tree.map(np.asarray, got)
        except mw.MeshweaveError as error:
            return "refused", str(error)[:300]
        except Exception as error:
            return "crash", f"{type(error).__name__}: {error}"[:300]
        pairs = zip(jax.tree.leaves(got), jax.tree.leaves(wanted), strict=True)
        wrong = [text for text in (differs(*pair) for pair in pairs) if text]
        return ("wrong", wrong[0]) if wrong else ("ok", "")


def _worker() -> None:
    by_text = {case.text: case for case in cases()}
    for line in sys.stdin:
        text, dtype, options = json.loads(line)
        sys.stdout.write("VERDICT " + json.dumps(verdict(by_text[text], dtype, options)) + "\n")
        sys.stdout.flush()


def _spawn() -> Any:
    command = [sys.executable, "-m", "frontends.jax_cases", "--worker"]
    return subprocess.Popen(command, stdin=-1, stdout=-1, stderr=subprocess.DEVNULL, text=True)


def main() -> None:
    """The table."""
    words = sys.argv[1:]
    if words == ["--worker"]:
        _worker()
        return
    types: Any = None
    options: dict[str, Any] = {}
    if words[:1] == ["--types"]:
        types, words = words[1].split(","), words[2:]
    if words[:1] == ["--mesh"]:
        options, words = {"mesh": words[1]}, words[2:]
    worker, counts = _spawn(), dict.fromkeys(("ok", "refused", "wrong", "crash", "absent"), 0)
    for case in cases():
        if words and not any(word in case.text or word == case.section for word in words):
            continue
        for dtype in case.types:
            if types and dtype not in types:
                continue
            worker.stdin.write(json.dumps([case.text, dtype, options]) + "\n")
            worker.stdin.flush()
            line = next((s for s in worker.stdout if s.startswith("VERDICT ")), None)
            if line is None:
                kind, why = "crash", f"the process ended with {worker.wait()}"
                worker = _spawn()
            else:
                kind, why = json.loads(line.removeprefix("VERDICT "))
            counts[kind] += 1
            print(
                f"{kind:8}{dtype:6}{case.section:15}{case.text}" + (f"    -- {why}" if why else ""),
                flush=True,
            )
    worker.stdin.close()
    print(", ".join(f"{count} {kind}" for kind, count in counts.items()))


if __name__ == "__main__":
    main()
