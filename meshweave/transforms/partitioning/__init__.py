"""Turn the global program into the program of one rank."""
