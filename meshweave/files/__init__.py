"""Handle files: writing whole or not at all, reproducible zip archives, checked JSON records, program text.

It imports `errors` alone; every other room may import it.
"""
