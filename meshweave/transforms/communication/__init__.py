"""Join collectives, and overlap them with compute, in the program of one rank."""
