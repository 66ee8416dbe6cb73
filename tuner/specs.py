"""Topology specs as commands take them: with files from the file system."""

from __future__ import annotations

from synth.topology.spec import parse_topology
from synth.topology.topology import Topology
from tuner.files import read_file


def load_topology(spec: str) -> Topology:
    """Return the checked topology of `spec`; file:PATH is read from disk. Raises InvalidInput."""
    return parse_topology(spec, read_file)
