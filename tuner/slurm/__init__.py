"""Jobs of Slurm for commands: what a site wants of them, their batch script, submitting and following them."""
