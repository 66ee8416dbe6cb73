"""Finds the best direct-connect topologies with a given node count and degree."""
