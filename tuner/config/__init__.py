"""Reads campaign files, and creates the runner and the workers that a campaign needs."""
