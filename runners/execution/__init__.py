"""Code shared by all runners that execute programs: the process of one rank, and rounds of measurements."""
