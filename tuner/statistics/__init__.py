"""Draw conclusions from launches: compare programs with known error probabilities, and decide what to measure next.

This package has no side effects.
"""
