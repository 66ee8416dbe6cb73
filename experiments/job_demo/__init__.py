"""`make demo-job`: training on an emulated fabric with Gloo, and with Chorale and its tuning table."""
