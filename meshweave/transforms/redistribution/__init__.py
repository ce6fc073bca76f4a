"""Make changes of layout explicit, fold them, and give each its plan."""
