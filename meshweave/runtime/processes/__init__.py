"""Engines whose ranks are processes: start them, exchange messages with them, end them.

The engines in `mpi/` and `gpu/` build on this room.
"""
