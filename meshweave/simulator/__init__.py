"""Simulate a GPU: `ptx` runs PTX with NumPy, `driver` records and replays the CUDA driver, NCCL and cuBLASLt.
`witness` runs LLVM IR.

Only the engine `emulate` and tests use it; it imports `runtime` and what that may import.
"""
