"""A backend for torch.distributed: programs of a tuning table for the calls that it covers, an inner backend for the
rest.

Jobs import nothing from this file: `import torch` registers the backend by the entry point `registration:register`.
"""
