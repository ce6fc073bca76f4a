"""`python -m benchmarks.gpu`: what programs of real sizes take on a GPU, beside a copy on the device and PyTorch.

Kernels that memory bounds are beside a copy's bytes a second; all are beside PyTorch, as it runs them and compiled by
inductor, in the same run; every time is of a CUDA graph. Results are compared with PyTorch's in f32. What is done is
written at once, with device, driver and versions, to benchmarks/results/ as JSON; with --resume it is not done again.
Without a GPU it says so and ends well.

--bundles DIR takes compiled programs from a folder, and puts there those that it has to compile; --prepare does only
that, for a machine with a GPU and no compiler.
"""

from __future__ import annotations

import argparse
import json
import platform
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.common import ROOT, show, table
from benchmarks.gpu.device import Device, gpus
from benchmarks.gpu.groups import AIMS, OF_COPY, Timed, chain, timed
from benchmarks.gpu.programs import Case
from meshweave import __version__
from meshweave.bundle import Bundle
from meshweave.errors import MeshweaveError
from meshweave.files.whole import write_text

LAUNCH_AIM = 5e-6  # seconds a kernel
PEER = ("-m", "benchmarks.peers.gpu")
Row = dict[str, Any]


@dataclass
class Bench:
    """Programs and the device that they run on. values: a folder for their results; None: they are not kept."""

    device: Device | None
    folder: Path | None
    chip: str
    repeat: int
    values: Path | None = None

    def bundle(self, each: Timed) -> Bundle:
        """A program's bundle, from the folder where it is there."""
        own = "_own" if each.kernels else ""
        path = self.folder and self.folder / f"{each.case.name}_{each.dtype}{own}_{self.chip}.mwb"
        if path is not None and path.exists():
            return Bundle.read(path)
        made = each.case.build(each.dtype, "nccl", self.chip, each.kernels)
        if path is not None:
            path.parent.mkdir(parents=True, exist_ok=True)
            made.write(path)
        return made

    def row(self, each: Timed) -> Row:
        """What a program takes, and the bytes of its arena."""
        bundle = self.bundle(each)
        assert self.device is not None
        times, results = self.device.run(bundle, each.case.sampled(each.dtype), self.repeat)
        if self.values is not None and each.peer:
            value = results[0].astype(np.float32)
            np.save(self.values / f"{each.name.replace(' ', '_')}.npy", value)
        ports = (*bundle.manifest.inputs, *bundle.manifest.outputs)
        return {
            "group": each.group, "name": each.name, "seconds": times.graph,
            "bytes": sum(port.nbytes for port in ports), "flops": each.flops,
            "arena": bundle.manifest.arena_bytes, "kernels": len(bundle.manifest.ops), "aim": AIMS[each.group],
        }  # fmt: skip

    def launch(self) -> Row:
        """Seconds of a step of many small kernels, for each: as the host enqueues it, and as a graph."""
        each = Timed("launch", Case("chain", chain, ((64, 64),)), "f32")
        bundle = self.bundle(each)
        count = len(bundle.manifest.ops)
        assert self.device is not None
        times, _ = self.device.run(bundle, each.case.arguments("f32"), self.repeat)
        return {"group": "launch", "name": "launch", "kernels": count, "aim": LAUNCH_AIM,
                "enqueued": times.enqueued / count, "plain": times.plain / count,
                "seconds": times.graph / count}  # fmt: skip


def measured(bench: Bench, programs: Sequence[Timed], known: Row, keep: Callable[[], None]) -> None:
    """Put what is not known yet into the rows by name; keep: writes them down."""
    assert bench.device is not None
    if "copy" not in known:
        rate = bench.device.copy_rate(bench.repeat)
        known["copy"] = {"group": "memory", "name": "copy", "bytes_per_second": rate}
        known["launch"] = bench.launch()
        keep()
    copied = known["copy"]["bytes_per_second"]
    for each in programs:
        key = each.name if each.peer else f"{each.name} own"
        if key in known:
            continue
        try:
            row = known[key] = bench.row(each) | {"name": key}
        except MeshweaveError as error:
            print(f"{key}: {error}", file=sys.stderr)
            continue
        if each.group in OF_COPY:
            row["of_copy"] = row["bytes"] / row["seconds"] / copied
        keep()


def torch_rows(command: Sequence[str], known: Row, keep: Callable[[], None]) -> None:
    """Put what PyTorch takes beside the rows."""
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, cwd=ROOT) as peer:
        assert peer.stdout is not None
        for line in peer.stdout:
            found = json.loads(line)
            if row := known.get(found.pop("name")):
                row.update(found)
                times = [found[k] for k in ("torch_seconds", "inductor_seconds") if k in found]
                row["of_best"] = min(times) / row["seconds"]
                keep()
    if peer.returncode:
        print(f"PyTorch's column ends early: status {peer.returncode}", file=sys.stderr)
    for name, row in known.items():
        beside = known.get(name.removesuffix(" own"), {})
        if name.endswith(" own") and "torch_seconds" in beside:
            row["of_best"] = beside["torch_seconds"] / row["seconds"]
    keep()


def shown(rows: Row) -> None:
    """Print the rows as tables, a group each."""
    for group in dict.fromkeys(row["group"] for row in rows.values()):
        of = [
            {k: v for k, v in row.items() if k != "group"}
            for row in rows.values()
            if row["group"] == group
        ]
        columns = list(dict.fromkeys(key for row in of for key in row))
        made = table(group, *columns)
        for row in of:
            made.add_row(*(_cell(row.get(column)) for column in columns))
        show(made)


def _cell(value: Any) -> str:
    return "-" if value is None else f"{value:.3g}" if isinstance(value, float) else str(value)


def options_of(arguments: list[str] | None) -> argparse.Namespace:
    """Read the command line."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.gpu", description=__doc__)
    parser.add_argument("--bundles", metavar="DIR", type=Path, help="compiled programs")
    parser.add_argument("--prepare", action="store_true", help="compile only")
    parser.add_argument("--chip", help="instead of the GPU's own")
    parser.add_argument("--repeat", type=int, default=20, help="steps of a measurement")
    parser.add_argument("--divide", type=int, default=1, help="sizes by so much, for a trial")
    parser.add_argument("--only", nargs="+", metavar="GROUP", help=f"of {', '.join(AIMS)}")
    parser.add_argument("--resume", action="store_true", help="keep what is in the file of results")
    parser.add_argument("--torch-python", help="an interpreter that has PyTorch")
    parser.add_argument(
        "--inductor", type=float, default=300.0, metavar="SECONDS", help="to spend on its compiles"
    )
    parser.add_argument("--out", metavar="FILE", type=Path, help="for the results")
    options = parser.parse_args(arguments)
    if options.prepare and options.bundles is None:
        parser.error("--prepare needs --bundles")
    return options


def main(arguments: list[str] | None = None) -> int:
    """The command; the exit status."""
    options = options_of(arguments)
    programs = [
        each for each in timed(options.divide) if not options.only or each.group in options.only
    ]
    if options.prepare:
        bench = Bench(None, options.bundles, options.chip or "sm_90a", 0)
        for each in programs:
            bench.bundle(each)
        bench.bundle(Timed("launch", Case("chain", chain, ((64, 64),)), "f32"))
        print(f"{options.bundles}: {len(list(options.bundles.glob('*.mwb')))} programs")
        return 0
    if not gpus():
        print(f"skipped: no GPU ({len(programs) + 2} measurements)")
        return 0
    device = Device()
    chip = options.chip or device.chip
    name = device.name.lower().replace(" ", "_")
    out = options.out or ROOT / "benchmarks" / "results" / f"gpu_{name}.json"
    out.parent.mkdir(parents=True, exist_ok=True)
    about = {
        "date": time.strftime("%Y-%m-%d"), "meshweave": __version__,
        "python": platform.python_version(), **device.about, "chip": chip,
    }  # fmt: skip
    known: Row = {}
    if options.resume and out.exists():
        known = {row["name"]: row for row in json.loads(out.read_text())["rows"]}

    def keep() -> None:
        text = json.dumps({"about": about, "rows": list(known.values())}, indent=1)
        write_text(str(out), text + "\n")

    with tempfile.TemporaryDirectory() as values:
        bench = Bench(device, options.bundles, chip, options.repeat, Path(values))
        measured(bench, programs, known, keep)
        command = [options.torch_python or sys.executable, *PEER]
        command += ["--divide", str(options.divide), "--results", values]
        command += ["--inductor", str(options.inductor), "--repeat", str(options.repeat)]
        left = [e.name for e in programs if e.peer and "torch_seconds" not in known.get(e.name, {})]
        if not options.torch_python and find_spec("torch") is None:
            print("no column for PyTorch: it is not installed", file=sys.stderr)
        elif left:
            torch_rows([*command, "--names", *left], known, keep)
    shown(known)
    print(f"written: {out}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
