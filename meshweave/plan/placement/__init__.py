"""Place a program that says nothing about layouts: the layouts of all values and the runs of all ops, at the optimum.

It imports `errors`, `layout` and the rest of `plan`.
"""
