"""Write floats of 8 bits and integers of 4 as bytes, where a program comes in: no later stage knows them.

The loader of programs imports this room.
"""
