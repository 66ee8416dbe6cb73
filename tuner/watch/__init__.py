"""Keeps a fabric tuned: tells when links change, plans for what is left, compares and publishes new tables."""
