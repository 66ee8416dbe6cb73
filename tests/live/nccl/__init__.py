"""NCCL itself on a GPU."""
