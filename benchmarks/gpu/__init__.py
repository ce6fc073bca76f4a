"""Measure what needs a device: `python -m benchmarks.gpu`; tests/gpu shares the device and the programs."""
