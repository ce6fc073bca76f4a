"""Decide where loops end at the sizes that calls choose: what is wanted of tensors, and what lies behind.

`limit-kernels` imports this.
"""
