"""Conclusions from launches: comparisons of programs with known error probabilities, and what to measure next. This
package has no side effects.
"""
