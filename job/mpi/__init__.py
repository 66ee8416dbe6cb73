"""Runs a tuning table's programs for the collectives of unmodified MPI applications, through a preloaded library."""
