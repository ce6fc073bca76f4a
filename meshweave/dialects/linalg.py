"""Empty on purpose: the upstream module takes long to import, and nothing needs its classes (see bindings.py)."""
