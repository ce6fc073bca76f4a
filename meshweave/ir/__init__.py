"""Wrap the MLIR bindings and what all their users share: locations, pipeline text, building ops.

From the other rooms it imports `errors` alone.
"""
