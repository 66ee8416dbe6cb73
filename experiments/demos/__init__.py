"""Contains a demonstration on an emulated fabric: a training job is recorded, tuned, and run with its tuning table."""
