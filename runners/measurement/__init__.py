"""Measurements with any runner: how many repetitions are needed, and how their times are analysed."""
