"""Tuned programs under MPI programs that are not changed: a library that is preloaded."""
