"""Executes plans of MSCCL++ on real processes: memory that ranks share, sockets behind ports, an emulated switch."""
