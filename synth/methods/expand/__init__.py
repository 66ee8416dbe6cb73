"""Schedules for expanded networks, from the schedule of the base; `expansions` makes the networks."""
