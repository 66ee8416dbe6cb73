"""A launch of a campaign: the plan, the loop of its trials, screening, the promotion gate and the report."""
