"""Define NumPy's functions beyond the array API standard, each in terms of the standard's functions.

The files are named as the families in `functions` that they belong to.
"""
