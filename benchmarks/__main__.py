"""`python -m benchmarks [NAME ..]`: run the benchmarks (all, unless named) and print their tables."""

import argparse
from importlib import import_module

NAMES = (
    "models",
    "compile_speed",
    "first_calls",
    "transformer",
    "redistribute",
    "bandwidth",
    "mpi_window",
    "slices",
    "slice_counts",
    "overlap",
    "attention",
    "dispatch",
    "eager",
    "operators",
    "decode",
    "few_rows",
    "lengths",
    "placement",
    "training",
    "budgets",
    "tracing",
)


def main() -> None:
    """Parse the command line and run what it names."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description=__doc__)
    parser.add_argument(
        "names", nargs="*", metavar="NAME", help=f"of {', '.join(NAMES)}; default: all"
    )
    parser.add_argument(
        "--jax-python", help="an interpreter with JAX, when it is not installed beside meshweave"
    )
    parser.add_argument(
        "--torch-python", help="the same with torch, for bandwidth, attention and dispatch"
    )
    parser.add_argument(
        "--repeat", type=int, default=5, help="timed runs of each program; the fastest counts"
    )
    parser.add_argument(
        "--svg",
        metavar="OUT.svg",
        help="of slices: bytes over width; of budgets: bytes over time; of operators: a strip a family",
    )
    parser.add_argument(
        "--quick",
        action="store_true",
        help="of operators: every tenth case; of few_rows: one shape; of training: small sizes; of lengths: four sizes",
    )
    parser.add_argument(
        "--only",
        nargs="+",
        default=(),
        metavar="FAMILY",
        help="of operators: these families; of training: these models; of placement, lengths: these programs",
    )
    parser.add_argument(
        "--predictions",
        action="store_true",
        help="of placement: predicted times beside measured ones",
    )
    parser.add_argument(
        "--machine",
        metavar="PROFILE.toml",
        help="of placement: the machine, as meshweave doctor --profile writes it, or h100, h200",
    )
    parser.add_argument(
        "--ranks",
        nargs="+",
        type=int,
        default=(),
        help="of placement: how many; default: 2 to 4096",
    )
    parser.add_argument(
        "--json",
        metavar="OUT.json",
        help="of operators: all figures; of budgets: each row at once, and rows that are there are not measured again",
    )
    parser.add_argument(
        "--limit", type=float, default=600, help="of budgets: seconds for each; default: 600"
    )
    parser.add_argument("--markdown", metavar="OUT.md", help="of operators: the tables of a page")
    options = parser.parse_args()
    unknown = [name for name in options.names if name not in NAMES]
    if unknown:
        parser.error(f"no benchmark {', '.join(unknown)}; there are {', '.join(NAMES)}")
    for name in options.names or NAMES:
        import_module(f"benchmarks.{name}").main(options)


if __name__ == "__main__":
    main()
