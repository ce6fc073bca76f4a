"""Stand in for the CUDA driver, NCCL and cuBLASLt: record every call, and replay it in any legal order."""
