"""`python -m tests.fuzz`: search each kind of case for failures, for a time, from a seed; status 1 if there are any."""

import argparse
import os
import sys
from collections import Counter
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT), str(ROOT / "tests")]
os.environ["MESHWEAVE_CACHE"] = "off"

from fuzz import (  # noqa: E402
    arrays,
    bundles,
    gradients,
    jax_programs,
    layouts,
    lengths,
    plans,
    programs,
    stablehlo,
)
from fuzz.search import Kind, search  # noqa: E402

KINDS: dict[str, Kind] = {
    kind.name: kind
    for module in (
        programs,
        gradients,
        jax_programs,
        lengths,
        layouts,
        plans,
        bundles,
        arrays,
        stablehlo,
    )
    for kind in module.KINDS
}


def main(arguments: "list[str] | None" = None) -> int:
    """Search; print a line for each kind and for each failure."""
    parser = argparse.ArgumentParser(prog="python -m tests.fuzz", description=__doc__)
    parser.add_argument("--seconds", type=float, default=10, help="for each kind (default: 10)")
    parser.add_argument("--seed", type=int, default=0, help="of the first batch (default: 0)")
    parser.add_argument("--only", nargs="+", choices=KINDS, metavar="KIND", help=", ".join(KINDS))
    parser.add_argument("--keep", type=Path, default=ROOT / "build" / "fuzz", metavar="FOLDER")
    options = parser.parse_args(arguments)
    failed = 0
    for name in options.only or KINDS:
        counts: Counter[str] = Counter()
        failures = search(KINDS[name], options.seed, options.seconds, counts)
        told = ", ".join(f"{n} {what}" for what, n in sorted(counts.items()))
        print(f"{name}: {told}; {len(failures)} failures", flush=True)
        for failure in failures:
            print(f"  {failure.keep(options.keep)}: {failure.wrong.splitlines()[0]:.200}")
        failed += len(failures)
    return int(failed > 0)


if __name__ == "__main__":
    sys.exit(main())
