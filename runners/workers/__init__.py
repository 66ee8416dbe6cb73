"""Runs a campaign's workers on one machine: processes that build and measure candidates."""
