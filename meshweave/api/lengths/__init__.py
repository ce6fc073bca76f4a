"""Programs for sizes that each call chooses: trace and compile them, and call them.

`api.jit` imports this.
"""
