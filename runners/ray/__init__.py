"""Runs a campaign's workers on Ray."""
