"""Collectives and programs over stock NCCL or RCCL."""
