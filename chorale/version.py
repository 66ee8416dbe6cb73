"""The version of what is installed."""

from importlib.metadata import version

DISTRIBUTION = "chorale-collectives"
__version__ = version(DISTRIBUTION)
