"""A job: processes that another launcher has started, each of them one rank. The faces may import this room.

`current.py` is what all others may ask; it imports nothing of the engine.
"""
