"""Experiments: the papers' printed results compared with the results of this code, and our own measurements."""
