"""Runs tuned programs in unmodified MPI programs through a preloaded library."""
