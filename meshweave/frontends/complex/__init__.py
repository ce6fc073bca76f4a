"""Write complex numbers as pairs of real ones, where a program comes in: no later stage knows them.

The loader of programs imports this room.
"""
