"""Collectives of the local view become calls on contiguous buffers."""
