"""Read Shardy meshes, shardings and manual computations as layouts. Frontends import this room."""
