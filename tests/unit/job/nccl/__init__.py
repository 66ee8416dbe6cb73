"""The tuner plug-in of NCCL."""
