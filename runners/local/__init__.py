"""The live local runner: one process per rank with an engine, one for an emulated network, real data."""
