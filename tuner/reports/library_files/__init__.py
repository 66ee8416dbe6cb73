"""Files by which other libraries choose: among their own algorithms, or programs of a tuning table."""
