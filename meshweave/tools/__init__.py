"""The commands: `meshweave-opt` (opt) and `meshweave` (cli)."""
