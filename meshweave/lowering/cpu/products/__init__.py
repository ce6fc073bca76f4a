"""Write products: calls of the library's GEMM, register blocks of vectors, and panels for convolutions.

Only `lowering.cpu` imports this room.
"""
