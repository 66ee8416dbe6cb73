"""Experiments: comparisons of this code's results with results printed in papers, and our own measurements."""
