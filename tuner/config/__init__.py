"""The campaign file: its sections, how it is read, and the runner and workers that it requests."""
