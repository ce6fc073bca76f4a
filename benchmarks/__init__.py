"""Benchmarks: every claim of speed is a ratio, against a peer or the machine's limit measured in the same run."""
