"""The functions of the array API standard on traced tensors: one file for each family."""
