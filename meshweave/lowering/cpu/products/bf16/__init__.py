"""Compute products of bf16 by the processor's own instructions for them, which add up in f32.

Only `lowering.cpu` imports this room.
"""
