"""Demonstrations on emulated fabrics: a job with a tuning table, and a watch that replaces the table of a cut link."""
