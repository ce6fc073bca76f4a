"""What compiling a program does before it loads it: what its arguments say, then the program of one rank.

Only `api` and the command-line tools import this.
"""
