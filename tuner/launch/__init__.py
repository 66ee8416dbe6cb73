"""A campaign launch: the plan, the trial loop, the promotion gate and the result."""
