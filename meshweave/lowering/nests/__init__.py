"""Fuse ops into kernels, and bind kernels to memory as loop nests.

Imported by `lowering` and its rooms.
"""
