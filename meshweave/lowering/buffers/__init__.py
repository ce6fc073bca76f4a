"""Turn tensors into buffers with a place in the arena, and launches into a schedule. For `lowering` alone."""
