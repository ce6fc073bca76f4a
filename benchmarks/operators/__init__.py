"""The sweep of operators: at least 300 cases beside torch and JAX, on one rank and on two.

Here are the cases, a file for each family, the process that measures them, and the tables and the picture of what it
found.
"""

from benchmarks.operators.sweep import main

__all__ = ["main"]
