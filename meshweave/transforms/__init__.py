"""PASSES: ours, in pipeline order. The lowerings add theirs in `meshweave.lowering`."""

from meshweave.transforms.attention.remake_scores import RemakeScores
from meshweave.transforms.base import Pass
from meshweave.transforms.communication.fuse_collectives import FuseCollectives
from meshweave.transforms.communication.overlap import Overlap
from meshweave.transforms.kernels.select_kernels import SelectKernels
from meshweave.transforms.partitioning.partition import Partition
from meshweave.transforms.partitioning.verify import Verify
from meshweave.transforms.propagation.donate import Donate
from meshweave.transforms.propagation.outline_repeats import OutlineRepeats
from meshweave.transforms.propagation.place import Place
from meshweave.transforms.propagation.propagate import Propagate
from meshweave.transforms.propagation.report import Report
from meshweave.transforms.propagation.sort_together import SortTogether
from meshweave.transforms.propagation.specialize_mesh import SpecializeMesh
from meshweave.transforms.redistribution.fold_redistribute import FoldRedistribute
from meshweave.transforms.redistribution.insert_redistribute import InsertRedistribute
from meshweave.transforms.redistribution.legalize_redistribute import LegalizeRedistribute
from meshweave.transforms.slicing.apply import HintApply
from meshweave.transforms.slicing.slice import HintSlice
from meshweave.transforms.slicing.strip import HintStrip
from meshweave.transforms.slicing.verify import HintVerify

_CLASSES: tuple[type[Pass], ...] = (
    HintStrip,
    HintApply,
    SpecializeMesh,
    RemakeScores,
    SortTogether,
    OutlineRepeats,
    Donate,
    Propagate,
    Place,
    InsertRedistribute,
    FoldRedistribute,
    LegalizeRedistribute,
    Report,
    Partition,
    HintSlice,
    FuseCollectives,
    Overlap,
    SelectKernels,
    HintVerify,
    Verify,
)

PASSES: dict[str, type[Pass]] = {p.name: p for p in _CLASSES}
