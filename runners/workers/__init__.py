"""A campaign's workers on one machine, and what each worker does."""
