"""Reduce terms, and join reductions of parts to those of the whole.

`reduce` gives each one form, of what the files beside it say of digits, ends, factors and pending parts; `joins` and
`turns` put parts together.
"""
