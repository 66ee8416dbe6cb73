"""The local runner: executes programs on real data, with a process per rank and one for an emulated network."""
