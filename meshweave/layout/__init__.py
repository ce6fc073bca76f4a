"""Define meshes and layouts: plain values and arithmetic, no MLIR.

It imports `errors` alone; every other room may import it.
"""

from meshweave.layout.digits import dim_indices, gather, scatter
from meshweave.layout.layout import AxisFactor, Layout, LocalFactor, Partial
from meshweave.layout.mesh import Axis, Link, Mesh

__all__ = [
    "Axis",
    "AxisFactor",
    "Layout",
    "Link",
    "LocalFactor",
    "Mesh",
    "Partial",
    "dim_indices",
    "gather",
    "scatter",
]
