"""Contexts that are lent again: to one compile at a time, for so many bytes of text, never after an error."""

import threading
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest

import meshweave as mw
from meshweave import dialects
from meshweave.api.program import build

TEXT = """
func.func @main(%a: tensor<{n}xf32>) -> tensor<{n}xf32> {{
  %e = tensor.empty() : tensor<{n}xf32>
  %r = linalg.{op} ins(%a : tensor<{n}xf32>) outs(%e : tensor<{n}xf32>) -> tensor<{n}xf32>
  return %r : tensor<{n}xf32>
}}
"""


@pytest.fixture(autouse=True)
def none_idle() -> None:
    dialects._IDLE.clear()


@pytest.mark.parametrize("nbytes", [0, dialects._MOST // 3])
def test_one_context_after_another_is_the_same_for_so_many_bytes(nbytes: int) -> None:
    times = -(-dialects._MOST // max(nbytes, dialects._LEAST))
    seen = []
    for _ in range(2 * times):
        with dialects.lent_context(nbytes) as ctx:
            seen.append(ctx)
    assert len({id(ctx) for ctx in seen}) == 2
    assert all(ctx is seen[0] for ctx in seen[:times])


def test_two_at_a_time_are_two() -> None:
    with dialects.lent_context() as one, dialects.lent_context() as other:
        assert one is not other


def test_after_an_error_or_a_large_program_it_is_let_go() -> None:
    with pytest.raises(mw.MeshweaveError):
        build(TEXT.format(n=4, op="nothing"), name="p")
    assert not dialects._IDLE
    with dialects.lent_context(dialects._MOST):
        pass
    assert not dialects._IDLE
    build(TEXT.format(n=4, op="exp"), name="p")
    assert len(dialects._IDLE) == 1


def test_a_program_is_the_same_in_a_new_context_and_in_one_lent_again() -> None:
    def digests() -> list[str]:
        return [build(TEXT.format(n=n, op="exp"), name="p").digest for n in (4, 5, 4)]

    first = digests()
    assert len(dialects._IDLE) == 1
    assert digests() == first and first[0] == first[2]


def test_threads_compile_at_a_time() -> None:
    begin = threading.Barrier(4)

    def work(number: int) -> None:
        begin.wait()
        for turn in range(6):
            n = 3 + 10 * number + turn
            x = np.linspace(0, 1, n, dtype=np.float32)
            with mw.compile(TEXT.format(n=n, op="exp")) as program:
                np.testing.assert_allclose(program(x)[0], np.exp(x), rtol=1e-6)

    with ThreadPoolExecutor(4) as pool:
        for done in [pool.submit(work, number) for number in range(4)]:
            done.result()


def test_a_context_is_made_after_a_dialect_file_was_imported() -> None:
    """MLIR imports dialects/stablehlo.py when it first meets an op of that name."""
    import meshweave.dialects.stablehlo  # noqa: F401
    from meshweave.dialects import context

    with context():
        pass
