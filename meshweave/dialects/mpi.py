"""Empty on purpose: else every lookup of an mpi op would retry a failing import (see bindings.py)."""
