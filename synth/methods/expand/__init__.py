"""Schedules for expanded networks, derived from the schedules of base networks."""
