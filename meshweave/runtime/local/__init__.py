"""The engine `local`: each rank is a thread of this process.

`api` and `torch` may import the fast path of a call (dispatch.py); all else goes through the row in `targets.ENGINES`.
"""
