"""Topology dumps of NCCL and RCCL: what a machine is made of, and the networks made of such machines."""
