"""Write PyTorch's complex numbers as pairs of real ones: upstream lowers few ops on complex tensors.

Importing it loads torch; the table of decompositions imports it.
"""
