"""Serve JAX users: `from_jax`, and JAX shardings as layouts. Nothing imports this face."""
