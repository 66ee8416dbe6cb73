"""Tuned choices under programs of NCCL that are not changed: a tuner plug-in."""
