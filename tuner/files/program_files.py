"""Reads program files (XML of any dialect, MSCCL++ plans) and their networks, and lowers schedule files to programs."""

from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from chorale.job.files import read_file
from chorale.runners.api.base import ProgramSettings
from chorale.synth import CheckFailed, InvalidInput, LoweringOptions, Program, Topology
from chorale.synth.build.build import build_program
from chorale.synth.collective import CustomCollective
from chorale.synth.methods.catalog import METHODS
from chorale.synth.programs.program import AnyProgram
from chorale.synth.targets.judge import bounded, judge
from chorale.synth.targets.lift import read_unchecked
from chorale.synth.targets.mscclpp_text import is_plan_text
from chorale.synth.targets.registry import LONGEST_NAME, Lifted
from chorale.synth.targets.xml_text import MAX_TEXT_BYTES
from chorale.synth.verify.verify import verify
from chorale.tuner.files.schedule_files import is_schedule_name, load_schedule, load_topology


def is_program_file(path: str) -> bool:
    """Return whether the file at `path` is a program or plan and not a schedule. Its name and its content decide."""
    return Path(path).suffix.lower() == ".xml" or is_plan_file(path)


def is_plan_file(path: str) -> bool:
    """Return whether the file contains an MSCCL++ plan. The content decides, as schedules can also end in .json."""
    return Path(path).suffix.lower() == ".json" and is_plan_text(read_file(path))


def load_program(path: str, network: Topology | None) -> tuple[Topology, Program]:
    """Return a file's network and checked program, see `load_code`. Raises InvalidInput for a plan."""
    topology, program = load_code(path, network)
    if not isinstance(program, Program):
        way_out = "a plan for MSCCL++ is run by its executor_test, and by `chorale run` on the local runner"
        raise InvalidInput("{} is neither a schedule nor an XML program", path, way_out)
    return topology, program


def load_code(
    path: str, network: Topology | None, *, any_network: bool = False, collective: CustomCollective | None = None
) -> tuple[Topology, AnyProgram]:
    """Return a file's network and checked program.

    Without `network`, the network is taken from the name of the program, into which `chorale lower` writes it. If this
    name does not contain a network, the network is complete (every rank is linked to every other) if `any_network` is
    set; otherwise InvalidInput is raised. Raises CheckFailed if the program does not perform its collective on the
    network. If the program hangs above some vector size, the returned program is limited to smaller vectors.
    """
    topology, lifted = load_unchecked(path, network, any_network=any_network, collective=collective)
    verdict = judge(lifted, topology)
    for violation in verdict.violations:
        rule = f"a program must compute its collective correctly on the topology ({violation.rule})"
        raise CheckFailed(rule, violation.message, "see all violations with `chorale lift`")
    return topology, bounded(lifted.program, verdict.max_bytes)


def load_unchecked(
    path: str, network: Topology | None, *, any_network: bool = False, collective: CustomCollective | None = None
) -> tuple[Topology, Lifted[AnyProgram]]:
    """Return a file's network and unchecked program; the network is chosen as in `load_code`."""
    lifted = read_unchecked(read_file(path, MAX_TEXT_BYTES), collective)
    if network is not None:
        return network, lifted
    named, ranks = _spec_in_name(lifted.program), len(lifted.program.ranks)
    if named is None and not (any_network and ranks > 1):
        way_out = "add --spec, such as --spec torus:4x4"
        raise InvalidInput("{} does not name its topology", path, way_out)
    return load_topology(named or f"complete:{ranks}"), lifted


def network_to_judge_on(spec: str | None, program: AnyProgram) -> tuple[Topology, bool]:
    """Return the network to check `program` on, and whether `spec` or the program's name determines it.

    If neither does, or if the name contains a file that does not exist here, the returned network links every rank to
    every other.
    """
    if spec is not None:
        return load_topology(spec), True
    named = _spec_in_name(program)
    if named is not None:
        with suppress(InvalidInput):
            return load_topology(named), True
    return load_topology(f"complete:{max(2, len(program.ranks))}"), False


def _spec_in_name(program: AnyProgram) -> str | None:
    """Return the spec in a program name such as `allgather bfb torus:4x4`; None if it may have been altered."""
    words = program.name.split()
    ours = len(words) == 3 and words[0] == program.collective.name.value and words[1] in METHODS
    return None if not ours or len(program.name) >= LONGEST_NAME or "_" in words[2] else words[2]


@dataclass(frozen=True, slots=True)
class Runnable:
    """A checked program and its network; `settings` is None if the file does not say how the program was built."""

    topology: Topology
    program: AnyProgram
    settings: ProgramSettings | None = None


def load_runnable(
    file: str,
    network: Topology | None,
    target: LoweringOptions,
    *,
    any_network: bool = False,
    collective: CustomCollective | None = None,
) -> Runnable:
    """Return the program in a program file (see `load_code`), or lower the schedule in a schedule file to `target`.

    any_network: whether a program that names no network may run on a network that links all pairs of ranks
    collective:  custom collective that the program performs; the program file does not describe it
    """
    if not is_schedule_name(file) or is_plan_file(file):
        return Runnable(*load_code(file, network, any_network=any_network, collective=collective))
    verified = verify(load_schedule(file))
    topology = verified.schedule.topology
    if collective is not None:
        rule = "the schedule already names its collective"
        raise InvalidInput(rule, "--collective-file", "leave it out, or run a program")
    if network is not None and network.id != topology.id:
        rule = f"--spec must be the topology of the schedule, {topology.spec}"
        raise InvalidInput(rule, network.spec, "leave it out")
    settings = ProgramSettings(k=verified.schedule.trees_per_root)
    return Runnable(topology, build_program(verified, target).program, settings)
