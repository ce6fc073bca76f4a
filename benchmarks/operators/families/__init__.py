"""The cases of the sweep, a file for each family of operators. They import neither JAX nor torch."""

from benchmarks.operators.case import Case
from benchmarks.operators.families import (
    control,
    convolutions,
    elementwise,
    indexing,
    linalg,
    models,
    networks,
    pooling,
    products,
    reductions,
    scans,
    selection,
    shapes,
)

FAMILIES = (
    elementwise,
    reductions,
    products,
    convolutions,
    pooling,
    networks,
    scans,
    selection,
    indexing,
    shapes,
    linalg,
    control,
    models,
)
CASES: tuple[Case, ...] = tuple(case for family in FAMILIES for case in family.CASES)
