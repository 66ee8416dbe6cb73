"""Plans as one kernel on GPUs that reach each other's memory, on stock PyTorch."""
