"""Host code of a gpu program: launches, streams, events, NCCL and cuBLASLt calls."""
