"""Commands as Slurm jobs: site profiles, batch scripts, submitting and following jobs."""
