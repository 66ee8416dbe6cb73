"""What the tests catch: faults are put into the product one at a time, and the tests that run the line are run."""
