"""What all tests share: Hypothesis without deadlines (compiling takes as long as it takes) and the
driver as a function.
"""

from collections.abc import Callable

import pytest
from commands import Outcome
from hypothesis import HealthCheck, settings

settings.register_profile(
    "meshweave",
    deadline=None,
    derandomize=True,  # the same examples on every run: a failure is a change's, not the day's
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.function_scoped_fixture],
)
settings.load_profile("meshweave")


@pytest.fixture
def opt(capfd: pytest.CaptureFixture[str]) -> Callable[..., Outcome]:
    """`meshweave-opt` in this process: `opt("FILE", "--cse")` gives its Outcome."""
    from meshweave.tools.opt import run

    def call(*arguments: str) -> Outcome:
        capfd.readouterr()
        status = run([str(a) for a in arguments])
        out, err = capfd.readouterr()
        return Outcome(status, out, err)

    return call
