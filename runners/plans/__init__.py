"""Executes plans of MSCCL++ on real processes: memory that ranks share, proxies behind ports, an emulated switch."""
