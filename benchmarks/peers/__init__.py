"""Run the same work in other libraries: each file is a command that a benchmark starts in an interpreter of its own.

They print JSON. They import nothing of meshweave that needs a compiler, so they run where only the peer is installed.
"""
