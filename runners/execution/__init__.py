"""What every runner that executes programs in Python shares: the interpreter of one rank, and rounds of measuring."""
