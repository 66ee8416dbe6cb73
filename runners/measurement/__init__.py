"""Analyses times that any runner has measured, and provides what measurements need: clocks, locks, private files."""
