"""Executes MSCCL++ plans in processes on CPUs, with shared memory, proxy threads for ports, and an emulated switch."""
