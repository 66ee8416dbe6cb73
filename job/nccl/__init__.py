"""Makes unmodified NCCL applications use tuned algorithms and protocols, through a tuner plug-in."""
