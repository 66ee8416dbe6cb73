"""Applies tuned choices in unmodified NCCL programs through a tuner plug-in."""
