"""Find a layout for every value, and what that needs: rules of ops, the graph, interfaces, symbolic meshes."""
