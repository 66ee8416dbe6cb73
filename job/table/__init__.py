"""Tuning tables: a file contains the programs that a job runs, by collective, type, group and size."""
