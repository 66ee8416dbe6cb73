"""Replays campaigns on recorded measurements: the real search uses recorded times, without GPUs or Ray."""
