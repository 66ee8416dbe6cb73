"""Tuning tables: one file with the programs that a job runs, by collective, type, group and size."""
