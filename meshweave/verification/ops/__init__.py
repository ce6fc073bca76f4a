"""Read ops: each file registers with `walk` how the ops of one kind become terms.

Only `check` imports it, for what it registers.
"""
