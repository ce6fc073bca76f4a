"""Decisions: costs, plans of redistributions, propagation. Plain values and arithmetic, no MLIR.

`plan_redistribute` makes plans; `cache_info()` says how many it has had to make and how many it knew, `search_info()`
how many of those it made needed a search and how many another shape's served; `cache_clear()` forgets them.
"""

from meshweave.plan.redistribute import (
    cache_clear,
    cache_info,
    plan_redistribute,
    search_info,
)
from meshweave.plan.steps import Plan, Step

__all__ = ["Plan", "Step", "cache_clear", "cache_info", "plan_redistribute", "search_info"]
