"""Compute products of short numbers by the processor's instructions for pairs of 16 bits.

Those of bf16 are added up in f32, those of int8 and int16 in int32.

Only `lowering.cpu` imports this room.
"""
