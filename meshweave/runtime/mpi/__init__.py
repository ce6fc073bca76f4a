"""The engine `mpi`: each rank is a process that calls MPI. Its rank, and the window of ranks of one host.

`api` and `tools` reach it through its row in `targets.ENGINES`.
"""
