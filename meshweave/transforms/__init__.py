"""PASSES: ours, in pipeline order. The lowerings add theirs in `meshweave.lowering`."""

from meshweave.transforms.base import Pass
from meshweave.transforms.insert_redistribute import InsertRedistribute
from meshweave.transforms.legalize_redistribute import LegalizeRedistribute
from meshweave.transforms.outline_repeats import OutlineRepeats
from meshweave.transforms.partition import Partition
from meshweave.transforms.propagate import Propagate
from meshweave.transforms.specialize_mesh import SpecializeMesh

_CLASSES: tuple[type[Pass], ...] = (
    SpecializeMesh,
    OutlineRepeats,
    Propagate,
    InsertRedistribute,
    LegalizeRedistribute,
    Partition,
)

PASSES: dict[str, type[Pass]] = {p.name: p for p in _CLASSES}
