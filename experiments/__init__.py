"""Experiments: they compare results printed in papers with results of this code, and make our own measurements."""
