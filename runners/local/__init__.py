"""The live local runner: one process per node, one paced stream socket per directed link, real data."""
