"""Write device kernels: a file for each way to compute a loop nest.

Only `gpu` imports this room.
"""
