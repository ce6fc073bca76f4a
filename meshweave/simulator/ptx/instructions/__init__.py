"""Execute PTX instructions on lanes held in NumPy arrays: one file for each family."""
