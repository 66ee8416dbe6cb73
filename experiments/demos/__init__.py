"""A demonstration on an emulated fabric: a job with a tuning table."""
