"""Contains experiments: comparisons with results printed in papers, and our own measurements."""
