"""Tuning tables: files that say which program a job runs for which collective, element type, group and size."""
