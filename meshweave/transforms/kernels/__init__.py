"""Choose a kernel for each op."""
