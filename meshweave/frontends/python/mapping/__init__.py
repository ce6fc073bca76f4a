"""Map functions over a dim of their arguments: `mw.vmap`.

Values inside of a mapped function have one dim less than what they stand for. Each primitive that meets one is computed
on the whole by its rule, so that gradients around, and other maps, see primitives alone.
"""
