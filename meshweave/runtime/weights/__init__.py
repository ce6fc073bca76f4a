"""Tensors in files of others: where each lies in its file, and how a rank reads its own part and no other bytes.

The faces and `runtime/arrays` may import it; it knows arrays, layouts and files, no programs.
"""
