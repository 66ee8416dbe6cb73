"""The workers of a campaign on Ray."""
