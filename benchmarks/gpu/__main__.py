"""`python -m benchmarks.gpu`: what kernels, products, launches and a transformer block take on a GPU.

Each is beside its floor, measured in the same run: memory-bound kernels beside a copy on the device,
products beside the library's and PyTorch's, a block beside PyTorch's. The results go, with device,
driver and versions, to benchmarks/results/ as JSON. Without a GPU it says so and ends well.

--bundles DIR takes compiled programs from a folder, and puts there those that it has to compile;
--prepare does only that, for a machine with a GPU and no compiler.
"""

from __future__ import annotations

import argparse
import json
import platform
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks.common import ROOT, show, table
from benchmarks.gpu.device import Device, gpus
from benchmarks.gpu.programs import Case, block, cases, gelu, norm, softmax
from meshweave import __version__
from meshweave.bundle import Bundle

AIMS = {"memory": 0.90, "library": 0.98, "own": 0.55, "launch": 5e-6}
"""Of copy bandwidth; of PyTorch's rate; of the library's rate; seconds a kernel."""


def memory_bound(by: int) -> dict[str, Case]:
    """Kernels that no arithmetic bounds; sizes are divided by `by`."""
    n = 8192 // by
    return cases(
        (
            ("gelu", lambda xp, x, y: gelu(xp, x) + y, [(n, n)] * 2),
            ("softmax", softmax, [(n, n)]),
            ("norm", norm, [(n, n), (n,), (n,)]),
            ("sum_rows", lambda xp, x: xp.sum(x, axis=1), [(n, n)]),
            ("sum_columns", lambda xp, x: xp.sum(x, axis=0), [(n, n)]),
            ("transpose", lambda xp, x: xp.permute_dims(x, (1, 0)) + 0, [(n, n)]),
        )
    )


def products(by: int) -> dict[str, Case]:
    """Square products."""
    return cases(
        [(f"product_{n}", lambda xp, a, b: a @ b, [(n // by, n // by)] * 2) for n in SQUARES]
    )


def chain(xp: Any, x: Any) -> Any:
    """Sums that nothing fuses: a kernel for each, of next to no work."""
    for _ in range(LINKS):
        x = x + xp.sum(x, axis=0) / x.shape[0]
    return x


LINKS = 32
SQUARES = (2048, 4096, 8192)


def blocks(by: int) -> dict[str, Case]:
    """A transformer block: batch x positions x width, its parameters."""
    width, positions = 4096 // by, 2048 // by
    shapes = [(4, positions, width), (width,), (width,), (width,), (width,), (width, 3 * width),
              (width, width), (width, 4 * width), (4 * width, width)]  # fmt: skip
    return cases([("block", block, shapes)])


@dataclass
class Bench:
    """Programs and the device that they run on."""

    device: Device | None
    folder: Path | None
    chip: str
    repeat: int

    def bundle(self, case: Case, dtype: str, kernels: str | None = None) -> Bundle:
        """A program's bundle, from the folder where it is there."""
        own = "_own" if kernels else ""
        path = self.folder and self.folder / f"{case.name}_{dtype}{own}_{self.chip}.mwb"
        if path is not None and path.exists():
            return Bundle.read(path)
        made = case.build(dtype, "nccl", self.chip, kernels)
        if path is not None:
            path.parent.mkdir(parents=True, exist_ok=True)
            made.write(path)
        return made

    def seconds(self, case: Case, dtype: str, kernels: str | None = None) -> float | None:
        """Of a step, as a graph; None where there is no device."""
        bundle = self.bundle(case, dtype, kernels)
        if self.device is None:
            return None
        return self.device.seconds(bundle, case.arguments(dtype), self.repeat)[0]


Row = dict[str, Any]


def memory_rows(bench: Bench, by: int) -> list[Row]:
    """Bytes a second of each family beside a copy's."""
    floor = bench.device.copy_rate(bench.repeat) if bench.device else None
    rows = [{"name": "copy", "bytes_per_second": floor}]
    for name, case in memory_bound(by).items():
        for dtype in ("f32", "bf16"):
            seconds = bench.seconds(case, dtype)
            manifest = bench.bundle(case, dtype).manifest
            nbytes = sum(port.nbytes for port in (*manifest.inputs, *manifest.outputs))
            rate = seconds and nbytes / seconds
            rows.append(
                {"name": f"{name} {dtype}", "seconds": seconds, "bytes_per_second": rate,
                 "of_copy": rate and floor and rate / floor, "aim": AIMS["memory"]}
            )  # fmt: skip
    return rows


def product_rows(bench: Bench, by: int, torch: Row) -> list[Row]:
    """FLOP a second by the library and by our own kernels, beside PyTorch's."""
    rows = []
    for name, case in products(by).items():
        n = case.shapes[0][0]
        for dtype in ("bf16", "f32"):
            for who, kernels in (("library", None), ("own", "-cublaslt")):
                if (who, dtype) == ("own", "f32"):
                    continue  # no tensor cores: nobody's aim
                seconds = bench.seconds(case, dtype, kernels)
                peer = torch.get(f"{name} {dtype}")
                rows.append(
                    {"name": f"{name} {dtype} {who}", "seconds": seconds,
                     "flops": seconds and 2 * n**3 / seconds, "torch_seconds": peer,
                     "of_torch": seconds and peer and peer / seconds, "aim": AIMS[who]}
                )  # fmt: skip
    return rows


def launch_rows(bench: Bench) -> list[Row]:
    """Seconds of a step of many small kernels, for each: as the host enqueues it, and as a graph."""
    case = Case("chain", chain, ((64, 64),))
    bundle = bench.bundle(case, "f32")
    count = len(bundle.manifest.ops)
    if bench.device is None:
        return [{"name": "launch", "kernels": count, "aim": AIMS["launch"]}]
    given = case.arguments("f32")
    graph, plain, enqueued = bench.device.seconds(bundle, given, bench.repeat)
    return [
        {"name": "launch", "kernels": count, "enqueued": enqueued / count, "plain": plain / count,
         "graph": graph / count, "aim": AIMS["launch"]}
    ]  # fmt: skip


def block_rows(bench: Bench, by: int, torch: Row) -> list[Row]:
    """A transformer block beside PyTorch's."""
    rows = []
    for name, case in blocks(by).items():
        seconds, peer = bench.seconds(case, "bf16"), torch.get("block bf16")
        rows.append(
            {"name": f"{name} bf16", "seconds": seconds, "torch_seconds": peer,
             "of_torch": seconds and peer and peer / seconds}
        )  # fmt: skip
    return rows


def torch_seconds(python: str | None, by: int) -> Row:
    """What PyTorch takes, by name; nothing where it is not installed."""
    command = [python or sys.executable, "-m", "benchmarks.peers.gpu", "--divide", str(by)]
    done = subprocess.run(command, capture_output=True, text=True, cwd=ROOT, timeout=600)
    if done.returncode:
        print(f"no column for PyTorch: {(done.stderr.strip() or 'no output').splitlines()[-1]}")
        return {}
    return json.loads(done.stdout.strip().splitlines()[-1])


def measured(bench: Bench, by: int, torch: Row) -> Row:
    """All rows."""
    return {
        "memory": memory_rows(bench, by),
        "products": product_rows(bench, by, torch),
        "launch": launch_rows(bench),
        "block": block_rows(bench, by, torch),
    }


def _shown(title: str, rows: list[Row]) -> None:
    columns = list(dict.fromkeys(key for row in rows for key in row))
    made = table(title, *columns)
    for row in rows:
        made.add_row(*(_cell(row.get(column)) for column in columns))
    show(made)


def _cell(value: Any) -> str:
    return "-" if value is None else f"{value:.4g}" if isinstance(value, float) else str(value)


def main(arguments: list[str] | None = None) -> int:
    """The command; the exit status."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.gpu", description=__doc__)
    parser.add_argument("--bundles", metavar="DIR", type=Path, help="compiled programs")
    parser.add_argument("--prepare", action="store_true", help="compile only")
    parser.add_argument("--chip", help="instead of the GPU's own")
    parser.add_argument("--repeat", type=int, default=20, help="steps of a measurement")
    parser.add_argument("--divide", type=int, default=1, help="sizes by so much, for a trial")
    parser.add_argument("--torch-python", help="an interpreter that has PyTorch")
    parser.add_argument("--out", metavar="FILE", type=Path, help="for the results")
    options = parser.parse_args(arguments)
    if not options.prepare and not gpus():
        count = 1 + 2 * len(memory_bound(1)) + 3 * len(SQUARES) + len(("launch", "block"))
        print(f"skipped: no GPU ({count} measurements)")
        return 0
    if options.prepare and options.bundles is None:
        parser.error("--prepare needs --bundles")
    device = None if options.prepare else Device()
    chip = options.chip or (device.chip if device else "sm_90a")
    bench = Bench(device, options.bundles, chip, options.repeat)
    if device is None:
        measured(bench, options.divide, {})
        print(f"{options.bundles}: {len(list(options.bundles.glob('*.mwb')))} programs")
        return 0
    results = measured(bench, options.divide, torch_seconds(options.torch_python, options.divide))
    for title, rows in results.items():
        _shown(title, rows)
    about = {
        "date": time.strftime("%Y-%m-%d"),
        "meshweave": __version__,
        "python": platform.python_version(),
    }
    name = device.name.lower().replace(" ", "_")
    out = options.out or ROOT / "benchmarks" / "results" / f"gpu_{name}.json"
    out.parent.mkdir(parents=True, exist_ok=True)
    text = json.dumps({"about": {**about, **device.about, "chip": chip}, **results}, indent=1)
    out.write_text(text + "\n")
    print(f"written: {out}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
