"""Topology specs given to commands; they may name files."""

import json
from pathlib import Path

from chorale.job.files import read_file
from chorale.synth import Topology, parse_topology
from chorale.synth.topology.formats.json_document import to_json
from chorale.synth.topology.grammar import FileCall, FunctionCall, SpecTree, parse_spec
from chorale.tuner.files.read_write import write_file


def load_topology(spec: str) -> Topology:
    """Return the checked topology of `spec`; file:PATH is read from disk. Raises InvalidInput for an invalid spec."""
    return parse_topology(spec, read_file)


def save_topology(topology: Topology, path: Path) -> None:
    write_file(path, (json.dumps(to_json(topology), indent=1) + "\n").encode())


def absolute_spec(spec: str) -> str:
    """Return `spec` with absolute file paths, so that it is valid in every folder.

    A spec without files is returned unchanged. Raises InvalidInput for an invalid spec.
    """
    tree = parse_spec(spec)
    absolute = _absolute(tree)
    return spec if absolute == tree else str(absolute)


def _absolute(tree: SpecTree) -> SpecTree:
    if isinstance(tree, FileCall):
        return FileCall(str(Path(tree.path).absolute()))
    if isinstance(tree, FunctionCall):
        inner = (_absolute(part) if isinstance(part, SpecTree) else part for part in tree.arguments)
        return FunctionCall(tree.name, tuple(inner))
    return tree
