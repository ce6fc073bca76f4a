"""Be a plugin of pytest: `pytest --mw-budget FILE` records what the programs of each test take, and compares.

Where FILE is not there yet, or with `--mw-budget-record`, it is written: a table for each test, with the keys of
`mw.expect`. Else a test whose programs take more than its table says fails, with the reasons.
"""

from __future__ import annotations

import json
from collections.abc import Generator, Mapping
from pathlib import Path
from typing import Any

import pytest
from pluggy import Result

from meshweave.errors import UsageError
from meshweave.files.whole import write_text

RECORDED = ("bytes", "peak", "collectives")  # compiles depend on which tests ran before


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add the options."""
    group = parser.getgroup("meshweave")
    group.addoption(
        "--mw-budget",
        metavar="FILE",
        help="compare bytes, collectives and memory of each test's programs with FILE; record them where it is missing",
    )
    group.addoption("--mw-budget-record", action="store_true", help="write FILE anew")


def pytest_configure(config: pytest.Config) -> None:
    """Begin to record or to compare, where a file is given."""
    if config.getoption("--mw-budget") is None:
        return
    try:
        config.pluginmanager.register(TestBudgets(config), "meshweave-budgets")
    except UsageError as error:
        raise pytest.UsageError(str(error)) from None


class TestBudgets:
    """Measure each test, and compare it with its budget or record it."""

    __test__ = False

    def __init__(self, config: pytest.Config) -> None:
        """Read the file, if it is there. Raises UsageError where it is no budget."""
        from meshweave.see.budget import Budget, read_toml  # not before a file is given

        self.path = Path(config.getoption("--mw-budget"))
        self.records = config.getoption("--mw-budget-record") or not self.path.exists()
        if self.records and hasattr(config, "workerinput"):
            raise UsageError("--mw-budget records in one process: leave out -n")
        self.budgets: dict[str, Budget] = {}
        self.taken: dict[str, dict[str, Any]] = {}
        self.without: list[str] = []
        if not self.records:
            for test, given in read_toml(self.path).items():
                if not isinstance(given, Mapping):
                    raise UsageError(f"{self.path}: {test}: a table is right, one for each test")
                self.budgets[test] = Budget.of(given, f"{self.path}: {test}")

    @pytest.hookimpl(hookwrapper=True)
    def pytest_runtest_call(self, item: pytest.Item) -> Generator[None, Result[None], None]:
        """Measure a test."""
        from meshweave.see.expect import Meter

        meter = Meter()
        meter.start()
        outcome = yield
        meter.stop()
        if outcome.excinfo is not None:
            return
        spent = meter.spent.as_dict()
        self.taken[item.nodeid] = {key: spent[key] for key in RECORDED}
        if self.records:
            return
        budget = self.budgets.get(item.nodeid)
        if budget is None:
            if meter.spent.peak_bytes:
                self.without.append(item.nodeid)
        elif found := budget.exceeded(meter.spent):
            text = "\n".join(meter.account(found))
            outcome.force_exception(pytest.fail.Exception(text, pytrace=False))

    def pytest_terminal_summary(self, terminalreporter: Any) -> None:
        """Write the file, and say so; name tests that it does not have."""
        say = terminalreporter.write_line
        if self.records:
            count = self._write()
            say(f"meshweave: {self.path}: budgets of {count} tests recorded")
        elif self.without:
            more = f" and {len(self.without) - 1} more" if len(self.without) > 1 else ""
            say(
                f"meshweave: {self.path} has no budget of {self.without[0]}{more}: see --mw-budget-record"
            )

    def _write(self) -> int:
        """Write what the tests took, of those that call programs; return how many."""
        parts = [
            f"[{json.dumps(test, ensure_ascii=False)}]\nbytes = {taken['bytes']}\npeak = {taken['peak']}\n"
            f"collectives = {_inline(taken['collectives'])}\n"
            for test, taken in self.taken.items()
            if taken["peak"]
        ]
        write_text(str(self.path), "\n".join(parts))
        return len(parts)


def _inline(counts: Mapping[str, int]) -> str:
    """Write an inline table."""
    if not counts:
        return "0"
    return f"{{ {', '.join(f'{name} = {count}' for name, count in counts.items())} }}"
