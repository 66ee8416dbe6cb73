"""Contains the version of the installed package."""

from importlib.metadata import version

DISTRIBUTION = "chorale-collectives"
__version__ = version(DISTRIBUTION)
