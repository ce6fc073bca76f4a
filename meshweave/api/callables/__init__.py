"""What a compiled function is beside a function: a method of objects, and something that is pickled.

Only `jit` and what makes compiled functions import this.
"""
