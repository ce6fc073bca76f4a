"""Serve PyTorch users: `from_torch` and the `torch.compile` backend. Nothing imports this face."""
