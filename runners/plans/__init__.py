"""Executes MSCCL++ plans in processes on CPUs, with shared memory and an emulated switch."""
