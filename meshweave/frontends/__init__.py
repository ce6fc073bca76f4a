"""Read programs of other systems as modules in the global view. The faces and the tools import this room."""
