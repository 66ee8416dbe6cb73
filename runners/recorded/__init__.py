"""Replays tables of measurements that were made earlier, elsewhere."""
