"""Runs collectives and programs over stock NCCL or RCCL."""
