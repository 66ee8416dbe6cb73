"""Runs launches of campaigns: plans them, tries candidates, compares the best ones, and registers the winners."""
