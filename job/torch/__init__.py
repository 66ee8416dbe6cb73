"""A torch.distributed backend. It runs programs for the calls that a tuning table covers, an inner backend the rest.

Jobs need not import it: `import torch` registers the backend through the entry point `registration:register`.
"""
