"""Export PyTorch modules and lower their graphs to linalg. The face for PyTorch imports this room."""
