"""Parts that all runners share which execute programs in Python: one rank's interpreter, and measurement rounds."""
