"""Choose layouts: what each op asks of its values, which layouts of all values move least, and where moves can wait.

It imports `errors`, `layout` and the rest of `plan`.
"""
