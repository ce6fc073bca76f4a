"""Check real programs: what is proven of them, and why the others are not, most frequent reasons first.

python -m tests.verify.corpus examples tests/data               programs of files, on several meshes
python -m tests.verify.corpus --random 500 --seed 1             random programs with layouts, half of them in slices
python -m tests.verify.corpus --tests tests/test_hints.py       all programs that tests cut for ranks
python -m tests.verify.corpus --keep DIR ..                     write the pairs, to check them again as DIR
"""

import argparse
import hashlib
import re
import sys
import time
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import hypothesis
import pytest
from hypothesis import strategies as st
from programs import programs
from test_hint_execute import in_region
from verify.pairs import compared, texts

import meshweave.pipeline
from meshweave.errors import MeshweaveError
from meshweave.ir.bindings import ir
from meshweave.layout import Mesh
from meshweave.verification.answer import Finding

MESHES: tuple[dict[str, int], ...] = ({}, {"dp": 1}, {"tp": 1}, {"dp": 3}, {"tp": 4})
"""Sizes of axes that differ from what a file says."""
RANDOM_MESHES = (Mesh(x=2), Mesh(x=3), Mesh(x=2, y=2), Mesh(x=4, y=2), Mesh(x=2, y=2, z=2))
SLICES = ("t=2", "t=3", "t:2", "t=8", "t=2, u=2", "t=3, u=2, v=2")
SCHEDULES = ("", 'order = "dfs"', 'order = "bfs"', "width = 2")
REFUSED = "refused"


@dataclass
class Report:
    """Count what is found. shown: how many programs are named for each reason."""

    shown: int = 3
    keep: Path | None = None
    counts: Counter[str] = field(default_factory=Counter)
    reasons: dict[str, list[str]] = field(default_factory=dict)
    seconds: float = 0.0
    _seen: set[str] = field(default_factory=set)

    def pair(self, name: str, whole: str, local: str) -> None:
        """Check a program that was not checked before."""
        key = hashlib.sha256((whole + local).encode()).hexdigest()[:12]
        if key in self._seen:
            return
        self._seen.add(key)
        name = f"{re.sub(r'[^A-Za-z0-9_.]+', '_', name)[-80:]}.{key}"
        if self.keep is not None:
            (self.keep / f"{name}.whole.mlir").write_text(whole)
            (self.keep / f"{name}.local.mlir").write_text(local)
        began = time.process_time()
        try:
            found = compared(whole, local)
        except MeshweaveError as error:
            self._note(REFUSED, f"{REFUSED}: {error}", name)
            return
        finally:
            self.seconds += time.process_time() - began
        if found.status == 0:
            self.counts["proven"] += 1
        elif found.refuted:
            self._note("refuted", "refuted", name)
        else:
            first = found.unproven[0] if found.unproven else Finding("", "", "no result")
            self._note("unproven", first.reason, name)

    def _note(self, verdict: str, reason: str, name: str) -> None:
        self.counts[verdict] += 1
        self.reasons.setdefault(group(reason), []).append(name)

    def __str__(self) -> str:
        total = sum(self.counts.values())
        said = ", ".join(f"{n} {what}" for what, n in sorted(self.counts.items()))
        lines = [f"{total} programs in {self.seconds:.1f} s: {said}"]
        for reason, names in sorted(self.reasons.items(), key=lambda r: -len(r[1])):
            lines.append(f"{len(names):5} {reason}")
            lines += [f"        {name}" for name in names[: self.shown]]
        return "\n".join(lines)


def group(reason: str) -> str:
    """What reasons of one kind have in common: no places, no numbers."""
    known = re.search(r"not known: ([^()]*)", reason)
    if known:
        return re.sub(r"\d+", "N", known[1].strip())
    reason = re.sub(r" at \[[^\]]*\]| \([^()]*\)|\([^()]*\)", "", reason)
    return re.sub(r"\d+", "N", reason)[:120]


class Recorder:
    """Check what tests cut for ranks. A plugin of pytest."""

    def __init__(self, report: Report) -> None:
        self.report, self.test = report, ""
        self.run = meshweave.pipeline.run_pipeline
        meshweave.pipeline.run_pipeline = self.recorded  # type: ignore[assignment]

    def pytest_runtest_setup(self, item: Any) -> None:
        self.test = item.name

    def recorded(self, module: ir.Module, text: str, *args: Any, **options: Any) -> Any:
        whole = str(module)
        made = self.run(module, text, *args, **options)
        cuts = "dist-partition" in text or "dist-pipeline" in text
        if cuts and "dist-propagate" in text.replace("dist-pipeline", "dist-propagate"):
            self.report.pair(self.test, whole, str(module))
        return made


def files(paths: list[Path]) -> Iterator[tuple[str, str]]:
    """Programs of files and folders, by name, on several meshes."""
    for path in paths:
        for file in sorted(path.rglob("*.mlir")) if path.is_dir() else [path]:
            text = file.read_text()
            for sizes in MESHES:
                other = resized(text, sizes)
                if not sizes or other != text:
                    said = "".join(f" {a}={n}" for a, n in sizes.items())
                    yield f"{file.stem}{said}", other


def resized(text: str, sizes: dict[str, int]) -> str:
    """The program on a mesh with other sizes."""
    for name, size in sizes.items():
        text = re.sub(rf'("{name}")=\d+', rf"\1={size}", text)
        text = re.sub(rf'(axes = "[^"]*\b{name}=)\d+', rf"\g<1>{size}", text)
    return text


@st.composite
def random_texts(draw: st.DrawFn) -> str:
    """A random program with layouts, perhaps with its last ops in slices along some time axes."""
    p = draw(st.sampled_from(RANDOM_MESHES).flatmap(programs))
    first = next((i for i, line in enumerate(p.lines) if p.results[0][0].name in line), None)
    if first is None or draw(st.booleans()):
        return p.text()
    axes, schedule = draw(st.sampled_from(SLICES)), draw(st.sampled_from(SCHEDULES))
    slices = f'slice = {{value = "{axes}", strength = "preferred"}}'
    return in_region(p, draw(st.integers(0, first)), ", ".join(filter(None, [slices, schedule])))


def random_programs(count: int, seed: int) -> list[str]:
    """Texts of random programs, the same ones for a seed."""
    found: list[str] = []

    @hypothesis.seed(seed)
    @hypothesis.settings(
        max_examples=count,
        database=None,
        deadline=None,
        phases=[hypothesis.Phase.generate],
        suppress_health_check=list(hypothesis.HealthCheck),
    )
    @hypothesis.given(random_texts())
    def draw(text: str) -> None:
        found.append(text)

    draw()
    return found


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("paths", nargs="*", type=Path)
    parser.add_argument("--random", type=int, default=0)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--tests", nargs="*", default=[])
    parser.add_argument("--keep", type=Path)
    parser.add_argument("--shown", type=int, default=3)
    options = parser.parse_args()
    report = Report(options.shown, options.keep)
    if options.keep:
        options.keep.mkdir(parents=True, exist_ok=True)
    kept = [p for p in options.paths if next(p.glob("*.whole.mlir"), None) is not None]
    for folder in kept:
        for file in sorted(folder.glob("*.whole.mlir")):
            local = file.with_name(file.name.replace(".whole.", ".local."))
            report.pair(file.name.split(".")[0], file.read_text(), local.read_text())
    drawn = random_programs(options.random, options.seed) if options.random else []
    named = [(f"random {options.seed} {k}", text) for k, text in enumerate(drawn)]
    for name, text in [*files([p for p in options.paths if p not in kept]), *named]:
        try:
            whole, local = texts(text)
        except MeshweaveError:
            continue  # it is refused on such a mesh
        report.pair(name, whole, local)
    if options.tests:
        pytest.main(["-q", "-p", "no:cacheprovider", *options.tests], plugins=[Recorder(report)])
    print(report)
    return int(report.counts["refuted"] > 0)


if __name__ == "__main__":
    sys.exit(main())
