"""Replay campaigns on recorded measurements: the real search runs on recorded times, without a machine or Ray."""
