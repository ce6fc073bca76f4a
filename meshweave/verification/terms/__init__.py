"""Say what values mean: terms over whole tensors, the arithmetic of their indices, and when two are equal.

`terms` holds them; `scalars`, `products`, the room `reductions` and `pieces` make them in one form; `samples` and
`differences` tell how two differ. Nothing here reads a program: `walk` and the room `ops` do.
Only `verification` imports it.
"""
