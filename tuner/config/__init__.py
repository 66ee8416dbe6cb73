"""Reads campaign files, and creates the runner and the workers that they request."""
