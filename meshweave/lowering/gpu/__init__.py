"""Compile for the gpu: units of a program to kernels in PTX, and host code that launches them.

Imported by `lowering` and the pipeline when a program is for this target.
"""
