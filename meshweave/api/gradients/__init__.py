"""Derive functions of arrays: inside traced functions a part of their programs, outside compiled as `jit` compiles."""
