"""Programs of JAX whose results are all proven, and the command that counts them."""

from typing import Any

import pytest

pytest.importorskip("jax")

from verify.of_jax import main, programs


@pytest.mark.parametrize(
    "name", ["attention, window", "attention, bf16, causal", "attention, bf16, trained"]
)
def test_an_attention_in_slices_is_proven(name: str) -> None:
    """A window is a table of places; in bf16 the whole program rounds the weights, and slices keep them in f32."""
    found = programs()[name].certificate()
    assert found.proven and not found.unproven, found


def test_the_command_says_what_is_proven_of_each_program(capsys: Any) -> None:
    assert main(["--only", "sort"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert [line.partition("  (")[0] for line in lines] == [
        "  1 of  1 proven  sort",
        "  1 of  1 proven  argsort",
        "2 of 2 results of 2 programs are proven; 2 programs are proven whole",
    ]
