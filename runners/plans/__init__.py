"""Executes MSCCL++ plans in real processes, with shared memory, proxies behind ports, and an emulated switch."""
