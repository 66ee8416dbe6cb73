"""A torch.distributed backend: a tuning table's programs for the calls that it covers, an inner backend for the rest.

Jobs need not import it: `import torch` registers the backend through the entry point `registration:register`.
"""
