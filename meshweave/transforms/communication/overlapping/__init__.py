"""What dist-overlap moves: collectives of loops, and of slices that are written out."""
