"""Benchmarks of Chorale."""
