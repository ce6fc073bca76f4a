"""Lower StableHLO to linalg in the global view. Frontends and the loader import this room."""

CAPTURED = "meshweave.captured"
"""What a custom_call names that stands for an array which the function holds; `backend_config` has its number."""
CALLBACK = "meshweave.host"
"""What a custom_call names that calls a function of Python; `backend_config` has its number and its name."""
