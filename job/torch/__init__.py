"""A torch.distributed backend. Calls that a tuning table covers run as programs; an inner backend handles the rest.

Jobs need not import this package: `import torch` registers the backend, through the entry point
`registration:register`.
"""
