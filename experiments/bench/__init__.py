"""Our own benchmarks."""
