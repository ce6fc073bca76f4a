"""Lower StableHLO to linalg in the global view. Frontends and the loader import this room."""
