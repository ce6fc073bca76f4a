"""Empty on purpose: else every lookup of a stablehlo op would retry a failing import (see bindings.py)."""
