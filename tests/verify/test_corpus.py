"""Real programs are proven or named as unproven, never refuted (`corpus.py` checks thousands)."""

from verify.corpus import Report, files, group, random_programs
from verify.pairs import EXAMPLES, texts

from meshweave.errors import MeshweaveError


def test_random_programs_are_not_refuted() -> None:
    report = Report()
    for number, text in enumerate(random_programs(40, 3)):
        report.pair(str(number), *texts(text))
    assert report.counts["refuted"] == report.counts["refused"] == 0, report
    assert report.counts["proven"] > 0.7 * sum(report.counts.values()), report


def test_an_example_is_proven_on_several_meshes() -> None:
    report = Report()
    for name, text in files([EXAMPLES / "mlp"]):
        try:
            report.pair(name, *texts(text))
        except MeshweaveError:
            continue  # refused on such a mesh
    assert set(report.counts) == {"proven"} and report.counts["proven"] > 2, report


def test_reasons_of_one_kind_are_one_group() -> None:
    reasons = [
        f"expected reduce sum ({n},) at [i0] (whole:{n}:7), is not known: no rule for scf.while (local:{n}:1)"
        for n in (4, 8)
    ]
    assert {group(r) for r in reasons} == {"no rule for scf.while"}
