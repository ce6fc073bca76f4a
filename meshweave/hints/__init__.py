"""Describe hints as plain values: their keys, the ledger of what became of them, the kernels they may choose.

It imports `errors` alone; passes, frontends and faces may import it.
"""
