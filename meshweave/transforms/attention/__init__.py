"""Recognise attention and compute it without its score matrix."""
