"""Simulate a GPU: `ptx` runs PTX with NumPy, `driver` records and replays the CUDA driver, NCCL and cuBLASLt.

Only the engine `emulate` and tests use it; it imports `runtime` and what that may import. `witness`, which runs
LLVM IR, is there for tests alone.
"""
