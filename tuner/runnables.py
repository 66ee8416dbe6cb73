"""What a runner can be given: the program of a schedule or program file, its network, and how it was made."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from chorale.runners.api.base import ProgramSettings
from chorale.synth.build.build import build_program, verify_schedule
from chorale.synth.errors import InvalidInput
from chorale.synth.lowering.options import LoweringOptions
from chorale.synth.programs.program import Program
from chorale.synth.topology.topology import Topology
from chorale.tuner.program_files import is_plan_file, load_program
from chorale.tuner.schedule_files import SUFFIXES, load_schedule


@dataclass(frozen=True, slots=True)
class Runnable:
    """A checked program; `settings` None where its file does not say how it was made."""

    topology: Topology
    program: Program
    settings: ProgramSettings | None = None


def load_runnable(file: str, network: Topology | None, target: LoweringOptions) -> Runnable:
    """Return the program of a schedule file, lowered as `target` says, or of a program file, see `load_program`."""
    if Path(file).suffix in SUFFIXES and not is_plan_file(file):
        verified = verify_schedule(load_schedule(file))
        topology = verified.schedule.topology
        if network is not None and network.id != topology.id:
            rule = f"--spec must be the topology of the schedule, {topology.spec}"
            raise InvalidInput(rule, network.spec, "leave it out")
        settings = ProgramSettings(k=verified.schedule.trees_per_root)
        return Runnable(topology, build_program(verified, target).program, settings)
    topology, program = load_program(file, network)
    return Runnable(topology, program)
