"""Benchmarks of this code."""
