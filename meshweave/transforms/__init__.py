"""PASSES: ours, in pipeline order. The lowerings add theirs in `meshweave.lowering`."""

from meshweave.transforms.base import Pass
from meshweave.transforms.fold_redistribute import FoldRedistribute
from meshweave.transforms.fuse_collectives import FuseCollectives
from meshweave.transforms.hint_apply import HintApply
from meshweave.transforms.hint_slice import HintSlice
from meshweave.transforms.hint_strip import HintStrip
from meshweave.transforms.hint_verify import HintVerify
from meshweave.transforms.insert_redistribute import InsertRedistribute
from meshweave.transforms.legalize_redistribute import LegalizeRedistribute
from meshweave.transforms.outline_repeats import OutlineRepeats
from meshweave.transforms.overlap import Overlap
from meshweave.transforms.partition import Partition
from meshweave.transforms.propagate import Propagate
from meshweave.transforms.report import Report
from meshweave.transforms.select_kernels import SelectKernels
from meshweave.transforms.specialize_mesh import SpecializeMesh

_CLASSES: tuple[type[Pass], ...] = (
    HintStrip,
    HintApply,
    SpecializeMesh,
    OutlineRepeats,
    Propagate,
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
)

PASSES: dict[str, type[Pass]] = {p.name: p for p in _CLASSES}
