"""Decompose PyTorch's ops into those that torch-mlir takes: `table` has them all. The room above imports `table`."""
