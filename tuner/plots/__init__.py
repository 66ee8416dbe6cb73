"""Drawings; matplotlib is imported here and nowhere else."""
