"""Runs each MSCCL++ plan as a single kernel, on GPUs that can access each other's memory, with stock PyTorch."""
