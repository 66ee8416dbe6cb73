"""Programs in C, C++ and Fortran under the preloaded library, for any MPI:

    python -m tests.live.job.mpi_languages [FOLDER-OF-MPICC-AND-MPIEXEC [SUFFIX]]

compiles and runs them by the compilers that are there (SUFFIX: `.openmpi`, as Debian names them), and prints what
served their calls.
"""

import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from chorale.job.mpi.preload import preload_library
from tests.live.job.mpi_jobs import COLLECTIVES, compiler, write_table

HERE = Path(__file__).parent
FORTRAN = {"mpif.h": 1, "use mpi": 2, "use mpi_f08": 3}


@dataclass(frozen=True, slots=True)
class Outcome:
    """What a program did: exit code, what served its calls, and what it said."""

    code: int
    programs: dict[str, int]
    fallbacks: dict[str, int]
    said: str


@dataclass(frozen=True, slots=True)
class Installation:
    """An MPI: the folder of its commands, and what Debian puts after their names."""

    folder: Path
    suffix: str = ""

    def command(self, name: str) -> Path:
        """Return the path of a command; a suffix stands after its name."""
        return self.folder / f"{name}{self.suffix}"

    def languages(self) -> Iterator[tuple[str, list[str]]]:
        """Yield the name of each language with a compiler here, and how its program is compiled."""
        yield "C++", [str(self.command("mpicxx")), str(HERE / "mpi_languages.cpp")]
        if self.command("mpifort").exists():
            for name, form in FORTRAN.items():
                flags = [f"-DFORM={form}", "-fallow-argument-mismatch"]
                yield f"Fortran, {name}", [str(self.command("mpifort")), *flags, str(HERE / "mpi_languages.F90")]

    def run(self, build: list[str], folder: Path, pending: bool, strict: bool) -> Outcome:
        """Compile a program and run it on four ranks with a table for all collectives."""
        program, table, report = folder / "program", folder / "table", folder / "report.json"
        report.unlink(missing_ok=True)
        subprocess.run([*build, *(["-DPENDING"] if pending else []), "-o", program], check=True, cwd=folder)
        variables = {
            "LD_PRELOAD": str(preload_library(self.command("mpicc"))),
            "CHORALE_TABLE": str(write_table(table, COLLECTIVES)),
            "CHORALE_REPORT": str(report),
            "CHORALE_STRICT": "1" if strict else "0",
        }
        given = [f"{name}={value}" for name, value in variables.items()]
        command = [self.command("mpiexec"), *self._options(), "-n", "4", "env", *given, program]
        environment = {**os.environ, "OMPI_ALLOW_RUN_AS_ROOT": "1", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1"}
        done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False, env=environment)
        written: dict[str, Any] = json.loads(report.read_text()) if report.exists() else {}
        served = {entry["collective"]: entry["calls"] for entry in written.get("programs", [])}
        fell = {f"{entry['collective']}: {entry['reason']}": entry["calls"] for entry in written.get("fallbacks", [])}
        return Outcome(done.returncode, served, fell, done.stderr + done.stdout)

    def _options(self) -> list[str]:
        text = subprocess.run(
            [self.command("mpiexec"), "--version"], capture_output=True, text=True, check=False
        ).stdout
        return ["--oversubscribe"] if "Open" in text else []


def main(arguments: list[str]) -> int:
    """Print a line for each language, and what strict mode says; return 0 where all is as it should be."""
    installation = Installation(Path(arguments[0]), *arguments[1:2]) if arguments else Installation(compiler().parent)
    is_right = True
    with tempfile.TemporaryDirectory() as name:
        for language, build in installation.languages():
            for pending, strict in ((True, False), (False, True), (True, True)):
                done = installation.run(build, Path(name), pending, strict)
                is_refused = "CHORALE_STRICT refuses it" in done.said
                is_right = is_right and (is_refused if pending and strict else done.code == 0 and bool(done.programs))
                how = "strict" if strict else "report"
                last = next((line for line in done.said.splitlines() if "chorale" in line), done.said[-300:])
                sys.stdout.write(
                    f"{language} | {how} | exit {done.code} | {done.programs} | {done.fallbacks} | {last}\n"
                )
    return 0 if is_right else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
