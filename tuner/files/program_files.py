"""Program files, XML of any dialect and plans of MSCCL++, with their networks; and runnable programs of any file.

A program is one file or a file for each rank, compressed or not. The loaders of MSCCL take the <gpu> of their own rank
from a file and pass over the others, so that a file with that one alone serves the process of the rank. What ends in
.gz is compressed, for readers that take it, as ours do.
"""

import zlib
from collections.abc import Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from chorale.job.files import read_file
from chorale.runners.api.base import ProgramSettings
from chorale.synth.build.build import build_program
from chorale.synth.build.schedules import verify_schedule
from chorale.synth.custom_collective import CustomCollective
from chorale.synth.errors import CheckFailed, InvalidInput
from chorale.synth.lowering.lower import LONGEST_NAME
from chorale.synth.lowering.options import LoweringOptions
from chorale.synth.methods.catalog import METHODS
from chorale.synth.programs.postconditions import AnyProgram
from chorale.synth.programs.program import Program
from chorale.synth.targets.base import Lifted
from chorale.synth.targets.judge import bounded, judge
from chorale.synth.targets.lift import read_unchecked
from chorale.synth.targets.mscclpp_reading import is_plan_text
from chorale.synth.targets.xml_reading import MAX_TEXT_BYTES
from chorale.synth.topology.topology import Topology
from chorale.tuner.files.read_write import require_new_folder, write_parts
from chorale.tuner.files.schedule_files import SUFFIXES, load_schedule
from chorale.tuner.files.topology_specs import load_topology

COMPRESSED = ".gz"
_END = b"</algo>\n"
_RANK_END = b"\n  </gpu>\n"
_GZIP = 31  # zlib: a header of gzip without a name and a time, so that equal programs have equal bytes
_LEVEL = 3  # of compression: a third of the time of the usual one, for a tenth more bytes
MAX_FILES = 2**16


def write_program(output: str, parts: Iterable[bytes], per_rank: bool) -> None:
    """Write the text of a program, given as root, ranks and end, to a file, or to one file per rank in a new folder.

    Raises InvalidInput if the folder of the file does not exist, or if the folder for ranks is not empty.
    """
    if not per_rank:
        write_parts(output, _compressed(parts) if output.endswith(COMPRESSED) else parts)
        return
    folder = Path(output)
    require_new_folder(folder)
    folder.mkdir(exist_ok=True)
    ranks = iter(parts)
    root = next(ranks)
    for number, part in enumerate(each for each in ranks if each != _END):
        write_parts(folder / f"rank-{number:05}.xml", (root, part, _END))


def parts_of(text: bytes, target: str) -> Iterator[bytes]:
    """Yield the root, the ranks and the end of a program that was written here; InvalidInput unless it is XML."""
    if not text.endswith(_END):
        raise InvalidInput("files for single ranks must be XML", target, "write one file")
    first = text.index(b"\n") + 1
    yield text[:first]
    while not text.startswith(_END, first):
        before = text.find(_RANK_END, first)
        if before < 0:
            raise InvalidInput("files for single ranks must be as they were written", target, "lower it again")
        yield text[first : before + len(_RANK_END)]
        first = before + len(_RANK_END)
    yield _END


def read_program_text(path: str, max_bytes: int) -> bytes:
    """Return the text (at most `max_bytes`) of a program file, compressed or not, or of a folder with a file per rank.
    Raises InvalidInput if the files of ranks belong to different programs.
    """
    if not Path(path).is_dir():
        return _read(path, max_bytes)
    files = sorted(Path(path).glob("rank-*.xml"))
    if not 0 < len(files) <= MAX_FILES:
        rule = f"a folder of a program must hold 1 to {MAX_FILES} files rank-NUMBER.xml"
        raise InvalidInput(rule, f"{path}: {len(files)}", "lower it with --per-rank")
    texts: list[bytes] = []
    left = max_bytes
    for file in files:
        root, *ranks, _ = parts_of(_read(str(file), left), file.name)
        if texts and root != texts[0]:
            rule = "the files of the ranks must belong to one program"
            raise InvalidInput(rule, f"{file}: another root", "lower it again into a new folder")
        texts += ranks if texts else [root, *ranks]
        left -= sum(map(len, ranks))
    return b"".join([*texts, _END])


def _read(path: str, max_bytes: int) -> bytes:
    content = read_file(path, max_bytes)
    if not path.endswith(COMPRESSED):
        return content
    stream = zlib.decompressobj(_GZIP)
    try:
        text = stream.decompress(content, max_bytes + 1)
    except zlib.error as error:
        raise InvalidInput("a file that ends in .gz must be compressed", f"{path}: {error}", "write it again") from None
    if len(text) > max_bytes:
        raise InvalidInput(f"a program must be at most {max_bytes} bytes", path, "use a smaller program")
    if not stream.eof:
        raise InvalidInput("a compressed file must be whole", path, "write it again")
    return text


def _compressed(parts: Iterable[bytes]) -> Iterator[bytes]:
    stream = zlib.compressobj(_LEVEL, zlib.DEFLATED, _GZIP)
    for part in parts:
        yield stream.compress(part)
    yield stream.flush()


SUFFIX, PLAN_SUFFIX = ".xml", ".json"
_ADD_SPEC = "add --spec, such as --spec torus:4x4"
_PLAN = "a plan for MSCCL++ is run by its executor_test, and by `chorale run` on the local runner"


def is_program_file(path: str) -> bool:
    """Return whether `path` is a program or a plan by its name and content, and not a schedule."""
    name = path.lower().removesuffix(COMPRESSED)
    return Path(path).is_dir() or Path(name).suffix == SUFFIX or is_plan_file(path)


def is_plan_file(path: str) -> bool:
    """Return whether `path` holds a plan for MSCCL++; schedules may have the same suffix."""
    return Path(path).suffix.lower() == PLAN_SUFFIX and is_plan_text(read_file(path))


def load_program(path: str, network: Topology | None) -> tuple[Topology, Program]:
    """Return the checked program in a file as `load_code` does; InvalidInput for a plan, which is no Program."""
    topology, program = load_code(path, network)
    if not isinstance(program, Program):
        raise InvalidInput("what is exported must be a schedule or an XML program", path, _PLAN)
    return topology, program


def load_code(
    path: str,
    network: Topology | None,
    *,
    any_network: bool = False,
    collective: CustomCollective | None = None,
) -> tuple[Topology, AnyProgram]:
    """Return the network and the checked program of a file.

    If `network` is None, it is read from the name that `chorale lower` gives a program; without one there, InvalidInput
    is raised, unless `any_network` connects all ranks with each other. Raises CheckFailed unless the program does what
    its collective says on the network. A program that hangs above some size is returned with that limit.
    """
    topology, lifted = load_unchecked(path, network, any_network=any_network, collective=collective)
    verdict = judge(lifted, topology)
    for violation in verdict.violations:
        rule = f"a program must do what its collective says on the topology ({violation.rule})"
        raise CheckFailed(rule, violation.message, "see all of it with `chorale lift`")
    return topology, bounded(lifted.program, verdict.max_bytes)


def load_unchecked(
    path: str,
    network: Topology | None,
    *,
    any_network: bool = False,
    collective: CustomCollective | None = None,
) -> tuple[Topology, Lifted[AnyProgram]]:
    """Return what a program file holds, not yet checked, and its network as `load_code` does."""
    lifted = read_unchecked(read_program_text(path, MAX_TEXT_BYTES), collective)
    return network or load_topology(_spec_of(path, lifted.program, any_network)), lifted


def network_to_judge_on(spec: str | None, program: AnyProgram) -> tuple[Topology, bool]:
    """Return the network of `spec` or of the program's name, and whether there is one.

    If the program names none, or names a file that does not exist here, all its ranks are connected with each other.
    """
    if spec is not None:
        return load_topology(spec), True
    named = _spec_in_name(program)
    if named is not None:
        with suppress(InvalidInput):
            return load_topology(named), True
    return load_topology(f"complete:{max(2, len(program.ranks))}"), False


def _spec_of(path: str, program: AnyProgram, any_network: bool) -> str:
    """Return the spec in a program's name. Without one, raises InvalidInput unless all ranks may be connected."""
    named = _spec_in_name(program)
    if named is None and not (any_network and len(program.ranks) > 1):
        raise InvalidInput("a program file needs the topology it runs on", path, _ADD_SPEC)
    return named or f"complete:{len(program.ranks)}"


def _spec_in_name(program: AnyProgram) -> str | None:
    """Return the last word of a name such as `allgather bfb torus:4x4`, None if it may be truncated or changed."""
    words = program.name.split()
    ours = len(words) == 3 and words[0] == program.collective.name.value and words[1] in METHODS
    return None if not ours or len(program.name) >= LONGEST_NAME or "_" in words[2] else words[2]


@dataclass(frozen=True, slots=True)
class Runnable:
    """A checked program and its network; `settings` is None if the file does not say how it was built."""

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
    """Return the program of a schedule file, lowered by `target`, or of a program file, see `load_code`.

    any_network: whether a program that names no network may run with all ranks connected
    collective:  collective of a program file that cannot name it
    """
    if Path(file).suffix in SUFFIXES and not is_plan_file(file):
        verified = verify_schedule(load_schedule(file))
        topology = verified.schedule.topology
        if collective is not None:
            rule = "a schedule says itself which collective it is for"
            raise InvalidInput(rule, "--collective-file", "leave it out, or run a program")
        if network is not None and network.id != topology.id:
            rule = f"--spec must be the topology of the schedule, {topology.spec}"
            raise InvalidInput(rule, network.spec, "leave it out")
        settings = ProgramSettings(k=verified.schedule.trees_per_root)
        return Runnable(topology, build_program(verified, target).program, settings)
    topology, program = load_code(file, network, any_network=any_network, collective=collective)
    return Runnable(topology, program)
