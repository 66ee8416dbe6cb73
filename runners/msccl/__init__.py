"""Runs programs on GPUs: by MSCCL, by the MSCCL executor for NCCL, and by RCCL, measured with nccl-tests."""
