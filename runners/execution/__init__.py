"""Code that all runners with rank processes share: the process of a rank, and rounds of measurements."""
