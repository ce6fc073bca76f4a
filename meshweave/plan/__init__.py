"""Decisions: costs, plans of redistributions, propagation. Plain values and arithmetic, no MLIR."""
