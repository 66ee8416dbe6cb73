"""Replays recorded tables of measurements from other machines."""
