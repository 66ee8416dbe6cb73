"""The workers of a campaign on one machine, and what each worker does."""
