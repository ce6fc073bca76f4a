"""Decide: costs, redistribution plans, propagation. Plain values and arithmetic, no MLIR.

`plan_redistribute` makes plans. `cache_info()` counts the plans made and those found in the cache; `search_info()`
counts the searches made and those that another shape's search replaced; `cache_clear()` forgets all plans.

It imports `errors` and `layout` alone.
"""

from meshweave.plan.redistribute import cache_clear, cache_info, plan_redistribute, search_info
from meshweave.plan.steps import Plan, PlanStep

__all__ = ["Plan", "PlanStep", "cache_clear", "cache_info", "plan_redistribute", "search_info"]
