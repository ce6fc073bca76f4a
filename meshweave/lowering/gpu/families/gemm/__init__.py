"""Compute products of matrices on the tensor cores, or with multiply-adds, and what is done with their elements."""
