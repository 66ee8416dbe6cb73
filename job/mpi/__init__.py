"""Runs tuned programs in unmodified MPI programs, by a preloaded library."""
