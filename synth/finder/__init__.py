"""Finding the best direct-connect topologies of a given number of nodes and degree."""
