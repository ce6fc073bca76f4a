"""Placement measured: twelve programs, the plans that people write for them, predictions, and what choosing takes."""
