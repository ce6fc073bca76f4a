"""The embedding API: `compile`, `jit`, `redistribute` and what they return.

It may import anything but the command-line tools.
"""
