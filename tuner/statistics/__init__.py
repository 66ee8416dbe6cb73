"""Draws conclusions from launches: compares programs with known error probabilities, and decides what to measure next.

This package has no side effects.
"""
