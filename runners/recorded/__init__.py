"""Replays recorded measurement tables from other machines."""
