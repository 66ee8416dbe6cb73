"""Applies tuned choices in unmodified NCCL programs, by a tuner plug-in."""
