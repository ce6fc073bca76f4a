"""`python -m tests.array_api CHECKOUT`: run the array API's own tests, data-apis/array-api-tests, on meshweave itself.

CHECKOUT is the folder of that repository, with its submodule `array-api`; its tests need pytest, hypothesis and
ndindex. `--layouts SEED` lays the arrays that the tests draw out at random on a mesh of 2x2. What else is given
goes to pytest: files, -k, -x. Nothing is fetched. The status is pytest's.
"""

import argparse
import os
import random
import re
import sys
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).resolve().parents[1]
MESH = "x=2, y=2"
EXCEPTIONS = {
    r"(floor_divide|__i?floordiv__)\((x1_i is [+-]infinity|isfinite\(x1_i\)).* x2_i is [+-]infinity\) -> -0|"
    r"(floor_divide|__i?floordiv__)\(x1_i is [+-]infinity and isfinite\(x2_i\)": (
        "infinity // 2 is NaN and 1 // -infinity is -1.0, as in Python and NumPy: the standard allows both"
    ),
}
"""A pattern of the names of tests that fail -> why. docs/array-api.md has the list."""

LAID_OUT = {r"^test_dunder_dlpack$": "other libraries get a copy of what several ranks hold"}
"""The same of tests that fail where arrays are laid out."""


class Conformance:
    """Mark the known exceptions, and lay out what the tests draw. seed: of layouts; None: one rank."""

    def __init__(self, seed: int | None) -> None:
        self.random = None if seed is None else random.Random(seed)

    def pytest_collection_modifyitems(self, items: list[Any]) -> None:
        """Expect the exceptions to fail: one that passes is no exception any more."""
        for item in items:
            rows = EXCEPTIONS | (LAID_OUT if self.random is not None else {})
            for pattern, reason in rows.items():
                if re.search(pattern, item.name):
                    item.add_marker(pytest.mark.xfail(reason=reason, strict=True))

    def pytest_collection(self) -> None:
        """Lay out the arrays that strategies draw."""
        if self.random is None:
            return
        from array_api_tests import hypothesis_helpers

        drawn = hypothesis_helpers.arrays

        def arrays(*args: Any, **kwargs: Any) -> Any:
            return drawn(*args, **kwargs).map(self.laid)

        hypothesis_helpers.arrays = arrays

    def laid(self, array: Any) -> Any:
        """Return an array with its dims over the axes of the mesh, drawn by its shape and the seed."""
        import meshweave as mw

        if not isinstance(array, mw.Array) or self.random is None or array.mesh.nranks > 1:
            return array
        dims: list[list[str]] = [[] for _ in array.shape]
        for axis in self.random.sample(("x", "y"), 2):
            if dims and (place := self.random.randrange(len(dims) + 1)) < len(dims):
                dims[place].append(axis)
        layout = f"[{', '.join('*'.join(axes) or '_' for axes in dims)}]"
        return mw.Array.from_numpy(array.numpy(), mesh=MESH, layout=layout, dtype=array.dtype_name)


def main() -> int:
    """Run the tests of the checkout in its folder."""
    parser = argparse.ArgumentParser(prog="python -m tests.array_api", description=__doc__)
    parser.add_argument("checkout", type=Path)
    parser.add_argument("--layouts", type=int, metavar="SEED", help="lay arrays out on 2x2")
    parser.add_argument("--max-examples", type=int, default=20, help="of each test (default: 20)")
    options, rest = parser.parse_known_args()
    if not (options.checkout / "array_api_tests").is_dir():
        parser.error(f"{options.checkout} is no checkout of data-apis/array-api-tests")
    if not (options.checkout / "array-api" / "spec").is_dir():
        parser.error(f"{options.checkout}/array-api is empty: git submodule update --init fills it")
    os.environ["ARRAY_API_TESTS_MODULE"] = "meshweave"
    sys.path[:0] = [str(ROOT), str(options.checkout)]
    os.chdir(options.checkout)
    settings = ["-p", "no:cacheprovider", "--disable-deadline", "--max-examples"]
    given = ["-q", *settings, str(options.max_examples), *(rest or ["array_api_tests"])]
    return int(pytest.main(given, plugins=[Conformance(options.layouts)]))


if __name__ == "__main__":
    sys.exit(main())
