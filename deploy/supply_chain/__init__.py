"""Hashes, bill of materials and licenses of the installed packages."""
