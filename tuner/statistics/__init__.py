"""What launches say about programs: comparisons with stated errors, and what is worth measuring next. Pure."""
