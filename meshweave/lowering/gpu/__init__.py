"""The gpu target: units of a program to kernels in PTX, and host code that launches them."""
