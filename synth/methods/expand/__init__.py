"""Schedules for expanded networks, derived from the schedules of their bases. `expansions` makes the networks."""
