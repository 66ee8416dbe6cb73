"""Runs programs over oneCCL's point-to-point calls, and oneCCL's own algorithms."""
