"""Finds the best direct-connect topologies with a given number of nodes and degree."""
