"""Write the step function, which calls kernels and collectives, the same for every target. For `lowering` alone."""
