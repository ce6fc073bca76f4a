"""Which kernels ops get: choices, contexts, hints, the cache; bit-exact results however the program is cut."""

import threading

import numpy as np
import pytest
from depth import thinned

import meshweave as mw
from meshweave.api import program as api
from meshweave.api.compiling.rank_program import passes_with
from meshweave.errors import CompileError, UsageError
from meshweave.frontends.python.place import chosen_kernels
from meshweave.hints.fast_paths import ALL, KERNELS, REFERENCE, Choice, as_choice
from meshweave.transforms.kernels.select_kernels import kernel_rows
from meshweave.transforms.slicing.ledger import read_ledger

X = np.random.default_rng(0).standard_normal((64, 48)).astype(np.float32)
W = np.random.default_rng(1).standard_normal((48, 32)).astype(np.float32)


def lowered(function, *args, kernels=None, **options):
    """The rows of what each op got, and of the ledger."""
    text = mw.jit(function, **options).lower(*args).as_text()
    with api.lowered(text, "f", None, kernels=as_choice(kernels)) as (module, _):
        return kernel_rows(module), read_ledger(module).rows()


def products(rows):
    return [row["kernel"] for row in rows if "matmul" in row["op"] or "generic" in row["op"]]


# Choices


def test_the_registry_is_ordered_and_says_what_it_needs():
    products = ["gemm_tf32", "cublaslt", "gemm_wgmma", "gemm_mma", "gemm_fma", "gemm_rows"]
    families = ["transpose", "elementwise", "rows", "columns"]
    ours = ["gemm_bf16", "panels", *products, *families, "codegen", "reference"]
    assert list(KERNELS) == ["flash", "blas", "lapack", *ours]
    assert KERNELS["blas"].refusal("f32") == "" and "bf16" in KERNELS["blas"].refusal("bf16")
    assert "gpu" in KERNELS["blas"].refusal("f32", "gpu")
    assert (
        KERNELS["cublaslt"].refusal("bf16", "gpu") == ""
        and KERNELS["codegen"].refusal("f64", "gpu") == ""
    )
    on_cpu = [k for k in KERNELS.values() if "cpu" in k.targets]
    assert [k.name for k in on_cpu if k.suits("bit_exact")] == [REFERENCE]
    assert [k for k in KERNELS if KERNELS[k].suits("bit_exact")] == [*families[:2], REFERENCE]
    assert [k for k in KERNELS if not KERNELS[k].suits("deterministic")] == ["gemm_tf32"]
    assert all(k.suits("tol") for k in KERNELS.values())
    rounded = KERNELS["gemm_tf32"]
    assert rounded.suits("tol", 1e-2) and not rounded.suits("tol", 1e-4)


def test_choices():
    assert ALL.disabled == () == ALL.enabled and Choice.parse("-flash").disabled == ("flash",)
    assert Choice.parse("reference").disabled == tuple(k for k in KERNELS if k != REFERENCE)
    assert Choice.of(("blas",), {"flash": True}).disabled == tuple(
        k for k in KERNELS if k not in ("blas", "flash", REFERENCE)
    )
    assert Choice.of(("blas",)).allows(REFERENCE)
    outer = Choice.of(None, {"flash": False})
    assert Choice.of(None, {"blas": False}).within(outer).disabled == ("flash", "blas")
    assert Choice.of(None, {"flash": True}).within(outer).disabled == ()
    assert Choice.of(("flash",)).within(outer).allows("flash")
    assert str(Choice.of(("blas",), {"flash": False})) == "blas -flash" and str(ALL) == "all"


def test_a_kernel_that_is_off_by_default():
    name = "gemm_tf32"
    assert not ALL.allows(name) and name not in ALL.disabled
    on, off = Choice.parse(f"+{name}"), Choice.parse(f"-{name}")
    assert on.allows(name) and on.enabled == (name,) and on.disabled == ()
    assert off.disabled == (name,) and off.enabled == ()
    assert Choice.of((name,)).enabled == (name,) and REFERENCE not in Choice.of((name,)).disabled
    assert ALL.within(on).allows(name) and not off.within(on).allows(name)
    (chosen,) = [text for text in passes_with(on) if text.startswith("select-kernels")]
    assert f"enable={name}" in chosen and "enable" not in "".join(passes_with(ALL))


@pytest.mark.parametrize("text", ["-flahs", "cublas", "+blass", "-reference"])
def test_wrong_choices(text):
    with pytest.raises(UsageError, match="kernel") as error:
        Choice.parse(text)
    assert "did you mean" in str(error.value) or "stays on" in str(error.value) or "cublas" in text


def test_an_unknown_name_is_an_error_everywhere():
    with pytest.raises(UsageError, match='did you mean "flash"'):
        mw.kernels(flsh=False)
    with pytest.raises(UsageError, match="no kernel"):
        mw.compile("func.func @main() { return }", kernels="fast")

    def f(x):
        with mw.hint(kernels="-blast"):
            return x @ x

    with pytest.raises(CompileError, match='did you mean "blas"'):
        mw.jit(f)(X[:48])


# Contexts


def test_contexts_nest_and_are_restored():
    with mw.kernels(only=("reference",)):
        assert chosen_kernels().disabled == tuple(k for k in KERNELS if k != REFERENCE)
        with pytest.raises(ZeroDivisionError), mw.kernels(blas=True):
            assert chosen_kernels().disabled == tuple(
                k for k in KERNELS if k not in ("blas", REFERENCE)
            )
            raise ZeroDivisionError
        assert chosen_kernels().disabled == tuple(k for k in KERNELS if k != REFERENCE)
    assert chosen_kernels() is None
    again = mw.kernels(flash=False)
    for _ in range(2):
        with again, again:
            assert chosen_kernels().disabled == ("flash",)
        assert chosen_kernels() is None


def test_contexts_hold_for_one_thread():
    seen = {}

    def other():
        seen["before"] = chosen_kernels()
        with mw.kernels(blas=False):
            inside.wait(10)
            seen["inside"] = chosen_kernels().disabled

    inside = threading.Barrier(2)
    with mw.kernels(flash=False):
        thread = threading.Thread(target=other)
        thread.start()
        inside.wait(10)
        assert chosen_kernels().disabled == ("flash",)
        thread.join()
    assert seen == {"before": None, "inside": ("blas",)}


def test_a_call_in_two_scopes_has_two_variants():
    f = mw.jit(lambda x, w: x @ w)
    fast = np.asarray(f(X, W))
    with mw.kernels(only=("reference",)):
        exact = np.asarray(f(X, W))
        np.asarray(f(X, W))
    again = np.asarray(f(X, W))
    assert f.cache_info() == (2, 2, 2)
    np.testing.assert_array_equal(fast, again)
    total = np.zeros((64, 32), np.float32)
    for k in range(48):
        total = total + X[:, k : k + 1] * W[k]
    np.testing.assert_array_equal(exact, total)


def test_a_context_around_traced_ops_is_about_those():
    def f(x, w):
        with mw.kernels(blas=False):
            first = x @ w
        return first, (2 * x) @ w

    rows, _ = lowered(f, X, W)
    assert sum(row["kernel"] == "blas" for row in rows) == 1
    off = [row for row in rows if 'switched off by kernels = "-blas"' in row["why"]]
    assert [row["kernel"] for row in off] == ["codegen"]


# Hints


def hinted(**hints):
    def f(x, w):
        with mw.hint(**hints):
            return x @ w

    return f


def test_hints_choose_and_the_ledger_says_so():
    rows, ledger = lowered(hinted(kernels="-blas"), X, W)
    assert "codegen" in products(rows) and "blas" not in products(rows)
    assert {row["outcome"] for row in ledger} == {"honoured"}
    rows, ledger = lowered(hinted(kernels="+blas"), X, W, kernels="-blas")
    assert "blas" not in products(rows)
    assert {row["outcome"] for row in ledger} == {"superseded"}


def test_inner_and_outer_hints():
    def f(x, w):
        with mw.hint(kernels="-blas"), mw.hint(kernels="+blas -flash"):
            return x @ w

    rows, ledger = lowered(f, X, W)
    assert "blas" not in products(rows), "a disable is required: nothing inside undoes it"
    outcomes = {row["hint"]: row["outcome"] for row in ledger}
    assert outcomes == {"kernels=-blas": "honoured", "kernels=+blas -flash": "superseded"}

    def g(x, w):
        with mw.hint(kernels="-blas", strength="preferred"), mw.hint(kernels="+blas"):
            return x @ w

    assert "blas" in products(lowered(g, X, W)[0])


@pytest.mark.parametrize(
    "numerics, kernel",
    [
        ("bit_exact", "reference"),
        ("deterministic", "blas"),
        ("tol(1e-3, 0)", "blas"),
        ("tol(1e-9, 0)", "reference"),
    ],
)
def test_numerics(numerics, kernel):
    rows, ledger = lowered(hinted(numerics=numerics), X, W)
    assert kernel in products(rows)
    assert {row["outcome"] for row in ledger} == {"honoured"}


def test_bit_exact_refuses_other_orders():
    def sliced(x, w):
        with mw.hint(slice="t=4", numerics="bit_exact"):
            return mw.constrain(x, "[_, t]") @ mw.constrain(w, "[t, _]")

    with pytest.raises(CompileError, match=r"bit_exact.*slices along t would each add up a part"):
        mw.jit(sliced)(X, W)
    split = mw.jit(hinted(numerics="bit_exact"), mesh="x=2", in_layouts=("[_, x]", "[x, _]"))
    with pytest.raises(CompileError, match=r"bit_exact.*ranks along x would each add up a part"):
        split(X, W)
    fine = mw.jit(hinted(numerics="bit_exact"), mesh="x=2", in_layouts=("[x, _]", "[_, _]"))
    np.testing.assert_allclose(np.asarray(fine(X, W)), X @ W, rtol=1e-4, atol=1e-5)


def test_bit_exact_is_the_same_however_it_is_cut():
    q, k, v = (
        np.random.default_rng(s).standard_normal((4, 160, 16)).astype(np.float32) for s in range(3)
    )

    def attention(**hints):
        def f(q, k, v):
            with mw.hint(numerics="bit_exact", **hints):
                return mw.softmax(q @ mw.matrix_transpose(k) * 0.25) @ v

        return f

    whole = np.asarray(mw.jit(attention())(q, k, v))
    rows, _ = lowered(attention(), q, k, v)
    assert {row["kernel"] for row in rows} == {"reference"}
    for hints in thinned(({"order": "dfs"}, {"order": "bfs"}, {"width": 2}, {"width": 3}), 2):
        got = np.asarray(mw.jit(attention(slice="t=4", **hints))(q, k, v))
        np.testing.assert_array_equal(got, whole)
    for mesh in thinned(("x=4", "x=1", "x=2"), 3):
        f = mw.jit(attention(), mesh=mesh, in_layouts="[x, _, _]", out_layouts="[x, _, _]")
        np.testing.assert_array_equal(np.asarray(f(q, k, v)), whole)


def test_flash_in_slices_and_off_by_hint():
    q, k, v = (
        np.random.default_rng(s).standard_normal((4, 300, 16)).astype(np.float32) for s in range(3)
    )

    def attention(**hints):
        def f(q, k, v):
            with mw.hint(**hints):
                return mw.softmax(q @ mw.matrix_transpose(k) * 0.25) @ v

        return f

    def has_flash(f):
        return any(row["kernel"] == "flash" for row in lowered(f, q, k, v)[0])

    assert has_flash(attention(slice="t=4", order="dfs"))
    off = attention(slice="t=4", order="dfs", kernels="-flash")
    assert not has_flash(off)
    fast, plain = (np.asarray(mw.jit(f)(q, k, v)) for f in (attention(slice="t=4"), off))
    np.testing.assert_allclose(fast, plain, rtol=2e-5, atol=2e-6)
