"""Runs programs on GPUs with MSCCL, the MSCCL executor for NCCL, or RCCL; writes jobs that use nccl-tests."""
