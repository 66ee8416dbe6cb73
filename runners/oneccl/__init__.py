"""Programs over oneCCL's point-to-point calls, beside oneCCL's own algorithms."""
