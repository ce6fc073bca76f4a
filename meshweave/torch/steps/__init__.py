"""Trace steps of training: what optimizers, scalers and schedules do in one becomes a graph without writes."""
