"""Programs over oneCCL's point-to-point calls, next to oneCCL's own algorithms."""
