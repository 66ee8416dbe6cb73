"""Conclusions from launches: comparisons of programs with stated errors, and what is worth measuring next. Pure."""
