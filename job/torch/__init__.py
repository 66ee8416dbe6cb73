"""A backend for torch.distributed: programs of a tuning table for what it covers, an inner backend for all else.

Nothing here is imported by a job: `import torch` registers the backend by the entry point `registration:register`.
"""
