"""The commands of the documentation: where they stand, what must be there before them, what they must print."""

import re
import shlex
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parents[2]
DOCS = ROOT / "docs"
PAGES = sorted(page.relative_to(DOCS).as_posix() for page in DOCS.rglob("*.md"))

NOT_RUN = {
    r"chorale (run|tune) .*--slurm\b": "needs a Slurm cluster; tests/live/slurm has one",
    r"chorale topology (import|placement) switches.txt": "needs a Slurm cluster; tests/live/slurm has one",
    r"chorale bound file:(got|preferred)\.json": "needs a Slurm cluster; tests/live/slurm has one",
    r"chorale (lift|run) scan\.xml": "a program by hand; tests/unit/tuner/cli/test_collective_file.py has one",
    r"chorale watch\b": "needs a fabric that is up; tests/live/watch has one",
    r"chorale serve": "serves until it is stopped; tests/integration starts it",
    r"chorale ui\b": "serves until it is stopped",
    r"chorale (demo|auto)\b": "measures for a minute; tests/unit/tuner/auto and tests/packaging/pythons.py do",
    r"chorale fabric (up|down|status|exec)\b(?!.* ip route)": "changes this machine's networks; tests/live does",
    r"chorale fabric exec 0 -- ip route": "needs a fabric that is up; tests/live has one",
    r"chorale run .*--runner (oneccl|mpi|local .*--where fabric)\b": "needs a fabric that is up; tests/live has one",
    r"chorale run .*--runner msccl\b": "needs GPUs; tests/live/nccl has a stand-in",
    r"chorale tune .*(--detach|--follow|--stop|--address)\b": "needs a Ray cluster; tests/integration has one",
    r"chorale tune examples/stock-nccl(?!.*--dry-run)": "needs GPUs; tests/live/nccl has a stand-in",
    r"chorale tune examples/switch-processes": "measures for minutes; tests/live has such programs",
    r"chorale tune .*cpu-cluster-oneccl(?!.*--dry-run)": "needs a fabric that is up; tests/live has one",
    r"chorale record -o": "needs PyTorch; tests/live/job/torch records jobs, tests/unit/tuner/cli has a stand-in",
    r"chorale record-training\b": "needs PyTorch; tests/unit/tuner/cli has a stand-in",
}
"""Commands whose words are only checked, with the reason; a refusal that a page prints is always checked."""

SLOW = {
    "algorithms/groups.md", "algorithms/in-network.md", "concepts/cost-model.md", "guide/gpus.md", "guide/measure.md",
    "guide/mlflow.md", "guide/programs.md", "guide/tables.md", "guide/training.md", "guide/tune-your-cluster.md",
    "reference/benchmarks.md", "reference/campaigns.md", "reference/recorded-measurements.md",
    "reference/reproduction.md",
}  # fmt: skip
"""Pages whose commands take longer than about ten seconds, or start Ray."""

WITHOUT_RAY = {"guide/first-hour.md"}
"""Pages whose campaigns build and measure in the process of the test; other pages and tests/integration start Ray."""


@dataclass(frozen=True, slots=True)
class Command:
    """A command line of a page. refusal: the line that it must end with instead of succeeding; output: where its
    standard output goes."""

    text: str
    refusal: str | None

    @property
    def words(self) -> list[str]:
        words = shlex.split(self.text, comments=True)[1:]
        return words[: words.index(">")] if ">" in words else words

    @property
    def output(self) -> str | None:
        words = shlex.split(self.text, comments=True)
        return words[words.index(">") + 1] if ">" in words else None

    @property
    def reason_not_to_run(self) -> str | None:
        if self.refusal is not None:
            return None
        return next((reason for pattern, reason in NOT_RUN.items() if re.match(pattern, self.text)), None)


def commands_of(text: str) -> list[Command]:
    """Return the `chorale` lines of the code blocks of a page, in order; later ones use files of earlier ones.

    Blocks in a language (```sh) are for machines that tests do not have.
    """
    found = []
    for language, block in re.findall(r"^```([^\n]*)\n(.*?)^```", text, re.DOTALL | re.MULTILINE):
        if language:
            continue
        lines = block.replace("\\\n", " ").splitlines()
        for line, following in zip(lines, [*lines[1:], ""], strict=True):
            if line.startswith("chorale "):
                found.append(Command(line, following if following.startswith("chorale: ") else None))
    return found


def named_files(text: str) -> Iterator[tuple[str, str]]:
    """Yield name and content of the files that a page shows, as ```json title="NAME"."""
    yield from re.findall(r"^```\w+ title=\"([^\"]+)\"\n(.*?)^```", text, re.DOTALL | re.MULTILINE)
