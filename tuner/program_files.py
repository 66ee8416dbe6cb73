"""Program files: XML of any dialect, ours or of others, with the network that they run on."""

from __future__ import annotations

from pathlib import Path

from synth.errors import CheckFailed, InvalidInput
from synth.lowering.lift import lift_with_findings, violations_on
from synth.lowering.lower import LONGEST_NAME
from synth.lowering.program import Program
from synth.lowering.xml_reader import MAX_TEXT_BYTES
from synth.methods import METHODS
from synth.topology.topology import Topology
from tuner.files import read_file
from tuner.specs import load_topology

SUFFIX = ".xml"
_ADD_SPEC = "add --spec, such as --spec torus:4x4"


def is_program_file(path: str) -> bool:
    """Return whether `path` is named like a program, not like a schedule."""
    return Path(path).suffix.lower() == SUFFIX


def load_program(path: str, given: Topology | None) -> tuple[Topology, Program]:
    """Return the checked program in a file, and the network that it runs on.

    Without one `given`, the network is the one in the name that `chorale lower` gives a program. InvalidInput if that
    tells none, CheckFailed unless the program does what its collective says on the network.
    """
    lifted = lift_with_findings(read_file(path, MAX_TEXT_BYTES))
    topology = given or load_topology(_spec_in_name(path, lifted.program))
    for violation in violations_on(lifted, topology):
        rule = f"a program must do what its collective says on the topology ({violation.rule})"
        raise CheckFailed(rule, violation.message, "see all of it with `chorale lift`")
    return topology, lifted.program


def _spec_in_name(path: str, program: Program) -> str:
    """Return the last word of a name such as `allgather bfb torus:4x4`; InvalidInput if it may be cut or changed."""
    words = program.name.split()
    ours = len(words) == 3 and words[0] == program.collective.name.value and words[1] in METHODS
    if not ours or len(program.name) >= LONGEST_NAME or "_" in words[2]:
        raise InvalidInput("a program file needs the topology it runs on", path, _ADD_SPEC)
    return words[2]
