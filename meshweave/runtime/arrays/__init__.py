"""Global arrays: the shards of all ranks with their layout, saved and loaded, and their exchange by DLPack.

The faces, the simulator and the other rooms of the runtime may import it.
"""
