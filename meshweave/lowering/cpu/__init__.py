"""Compile for the cpu: loop nests, register blocks and BLAS calls to machine code.

The gpu's host code uses `codegen` for its step function; else only `lowering` imports this room.
"""
