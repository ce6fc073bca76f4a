"""Compute attention on the tensor cores, without its scores in memory."""
