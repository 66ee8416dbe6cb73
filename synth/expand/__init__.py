"""Schedules for expanded networks, from the schedule of the base; `synth.topology.expansions` makes the networks."""
