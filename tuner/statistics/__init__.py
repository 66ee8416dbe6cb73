"""Conclusions from launches: comparisons of programs with known error probabilities, and what to measure next. There
are no side effects in this package.
"""
