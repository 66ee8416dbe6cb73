"""A backend for torch.distributed: programs of a tuning table for the calls that it covers, an inner backend for the
rest.

Jobs need not import it: `import torch` registers the backend through the entry point `registration:register`.
"""
