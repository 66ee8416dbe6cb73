"""Code shared by all runners that execute programs: the rank process, and measurement rounds."""
