"""Our own benchmarks: each has a goal, a reference that runs beside it, and facts that never change."""
