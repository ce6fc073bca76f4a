"""Benchmarks: every claim of speed is a ratio, against a peer or the machine's limit measured in the same run.

Nothing is taken from the cache of compiled programs: times to compile are those of compiling.
"""

import os

os.environ["MESHWEAVE_CACHE"] = "off"
