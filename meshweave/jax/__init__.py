"""Serve JAX users: `from_jax`, `jit`, and JAX shardings as layouts. Nothing imports this face."""

from meshweave.jax.function import jit

__all__ = ["jit"]
