"""Runs commands as Slurm jobs: reads site profiles, writes batch scripts, submits and follows jobs."""
