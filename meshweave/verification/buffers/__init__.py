"""Check a program on buffers against the same program on tensors, apart from the passes that placed the buffers.

`read` makes plain values (`program`) of both modules, and `check` walks them side by side (`walk`, `steps`). On tensors
each value is a content (`contents`), made of the results of ops; on buffers the bytes of memory hold contents, and
`relation` tells whether they hold what they should. It imports `ir`, `layout` and `abi`, nothing of the passes.
"""
