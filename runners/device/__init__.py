"""Runs MSCCL++ plans as one kernel on GPUs that can access each other's memory, with stock PyTorch."""
