# ruff: noqa: T201 - printing is what it is for
"""Stand-in for a test program of nccl-tests with a library that executes MSCCL programs, all ranks in one process.

It decides as the runtimes do which calls the program serves, executes it on sets of contributions with the
interpreter of `chorale.synth.lowering`, logs and prints as they do. Its times are formulas: nothing is measured. What
it plays is said by variables: STAND_IN_RUNTIME (msccl, executor, rccl), STAND_IN_TABLE (old, new), STAND_IN_FAULT,
STAND_IN_LIBRARY_BYTES_PER_US; STAND_IN_MEMORY is a folder where it remembers programs that it executed.
"""

from __future__ import annotations

import hashlib
import json
import os
import sys
import time
from collections.abc import Iterator
from dataclasses import asdict, dataclass, field
from pathlib import Path

BYTES = {"float": 4, "double": 8, "half": 2, "bfloat16": 2, "int32": 4, "int64": 8}
COLLECTIVES = {
    "all_reduce_perf": "allreduce",
    "all_gather_perf": "allgather",
    "reduce_scatter_perf": "reduce_scatter",
    "broadcast_perf": "broadcast",
    "reduce_perf": "reduce",
}
SHARDED = ("allgather", "reduce_scatter")
LIBRARY_US, TREE_US, PROGRAM_US = 30.0, 20.0, 12.0
LIBRARY_BYTES_PER_US, PROGRAM_BYTES_PER_US = 20_000.0, 50_000.0
PROTOCOLS = {"Simple": (PROGRAM_US, PROGRAM_BYTES_PER_US), "LL": (4.0, 12_000.0), "LL128": (7.0, 40_000.0)}
BUFFERS = {"Simple": "NCCL_BUFFSIZE", "LL": "NCCL_LL_BUFFSIZE", "LL128": "NCCL_LL128_BUFFSIZE"}


@dataclass
class Call:
    """The command line of the test program."""

    collective: str
    first: int
    last: int
    factor: int
    dtype: str
    iterations: int
    warmup: int

    @staticmethod
    def of(argv: list[str]) -> Call:
        told = dict(zip(argv[1::2], argv[2::2], strict=True))
        assert told["-g"] == "1"
        return Call(
            COLLECTIVES[Path(argv[0]).name],
            int(told["-b"]),
            int(told["-e"]),
            int(told["-f"]),
            told["-d"],
            int(told["-n"]),
            int(told["-w"]),
        )

    def sizes(self) -> Iterator[int]:
        size = self.first
        while size <= self.last:
            yield size
            size *= self.factor


@dataclass
class Loaded:
    """What a program serves, and whether it computes something else."""

    collective: str
    ranks: int
    chunks: int
    in_place: bool
    min_bytes: int
    max_bytes: int
    protocol: str
    wrong: bool

    @staticmethod
    def of(path: Path) -> Loaded:
        """Read and execute the program in `path`, or remember what came out when another launch did."""
        text = path.read_bytes()
        memory = Path(os.environ["STAND_IN_MEMORY"]) / hashlib.sha256(text).hexdigest()
        if memory.exists():
            return Loaded(**json.loads(memory.read_text()))
        from chorale.synth.programs.check_execution import execution_violations  # noqa: PLC0415 (takes a second)
        from chorale.synth.targets.lift import lift  # noqa: PLC0415

        program = lift(text)
        loaded = Loaded(
            program.collective.name.value,
            len(program.ranks),
            program.chunks,
            program.in_place,
            program.min_bytes,
            program.max_bytes,
            program.protocol,
            wrong=bool(execution_violations(program)),
        )
        memory.write_text(json.dumps(asdict(loaded)))
        return loaded


@dataclass
class Library:
    """The library with NCCL's interface that the test program is linked to."""

    runtime: str
    ranks: int
    fault: str
    logs: dict[int, list[str]] = field(default_factory=dict)
    program: Loaded | None = None

    def load(self) -> None:
        """Look for a program where the runtime does."""
        if self.runtime == "msccl":
            path = os.environ.get("MSCCL_XML_FILES")
        else:
            off = os.environ.get("NCCL_MSCCL_ENABLE", "1") == "0" or os.environ.get("RCCL_MSCCL_ENABLE", "1") == "0"
            forced = self.runtime != "rccl" or os.environ.get("RCCL_MSCCL_FORCE_ENABLE") == "1"
            folder = os.environ.get("MSCCL_ALGO_DIR")
            path = None if off or folder is None or not forced else str(self._only_file(folder))
        if path is not None:
            self.program = Loaded.of(Path(path))
            self._log_loading(path)

    def _only_file(self, folder: str) -> Path:
        (path,) = Path(folder).iterdir()
        return path

    def _log_loading(self, path: str) -> None:
        for rank in range(self.ranks):
            if self.fault == "half-loaded" and rank == 1:
                self.log(rank, f"MSCCL: algorithm {path} failed to initialize. Will be ignored.", "WARN")
                self.log(rank, "Connected 0 MSCCL algorithms")
            elif self.runtime == "msccl":
                self.log(rank, f"Parsed MSCCL Algorithm {path} successfully.")
                self.log(rank, "Connected 1 MSCCL algorithms")
            else:
                self.log(rank, f"Using MSCCL Algo files from {Path(path).parent}")
                self.log(rank, "MSCCL: Initialization finished, localSize 4096")

    def log(self, rank: int, text: str, level: str = "INFO") -> None:
        self.logs.setdefault(rank, []).append(f"stand-in:{4000 + rank}:{4100 + rank} [{rank}] NCCL {level} {text}")

    def executes(self, call: Call, size: int, in_place: bool) -> bool:
        """Return whether the program serves the call; by the rules of the runtimes, not by ours."""
        program = self.program
        if program is None or self.fault in ("fall-back", "half-loaded", f"{program.protocol} falls back"):
            return False
        elements = size // BYTES[call.dtype]
        listed = "MSCCL" in os.environ.get("NCCL_ALGO", "").split(",")
        if self.runtime == "msccl" and call.collective == "allreduce" and not listed:
            return False
        if self.runtime == "rccl" and call.collective in SHARDED:
            elements //= self.ranks
        fits = size >= program.min_bytes and (not program.max_bytes or size <= program.max_bytes)
        if self.fault == "fall-back above 1 MiB" and size > 2**20:
            return False
        same = program.collective == call.collective and program.ranks == self.ranks
        return same and fits and program.in_place == in_place and elements % program.chunks == 0

    def run(self, call: Call, size: int, in_place: bool) -> tuple[float, int]:
        """Return the time in us and how many elements are wrong."""
        if self.program is None or not self.executes(call, size, in_place):
            slow = 1.0 if self.fault != "as fast as the library" else PROGRAM_US / LIBRARY_US
            rate = float(os.environ.get("STAND_IN_LIBRARY_BYTES_PER_US", LIBRARY_BYTES_PER_US))
            start_us = TREE_US if os.environ.get("NCCL_ALGO") == "TREE" else LIBRARY_US
            return start_us * slow + size / rate * slow, 0
        if self.runtime != "msccl":
            for rank in range(self.ranks):
                for _ in range(call.iterations + call.warmup * (not in_place)):
                    self.log(rank, "MSCCL: typeMask 3 Setup Kernel finished, smem 4096")
        start_us, rate = PROTOCOLS[self.program.protocol]
        rate *= min(1.0, int(os.environ.get(BUFFERS[self.program.protocol], "4194304")) / 2**20)
        wrong = size // BYTES[call.dtype] if self.program.wrong or self.fault == "wrong" else 0
        return start_us + size / rate, wrong

    def write_logs(self) -> None:
        """Write what each process has to say at the level that is asked for."""
        level, where = os.environ.get("NCCL_DEBUG", ""), os.environ["NCCL_DEBUG_FILE"]
        for rank, lines in self.logs.items():
            shown = [line for line in lines if level == "INFO" or " NCCL WARN " in line]
            Path(where.replace("%h", "stand-in").replace("%p", str(4000 + rank))).write_text("\n".join(shown) + "\n")


def heading(ranks: int, call: Call, table: str) -> None:
    if table == "new":
        print("# nccl-tests version 2.19.6 nccl-headers=22304 nccl-library=22304")
        print("# Collective test starting: stand-in")
    print(f"# nThread 1 nGpus 1 minBytes {call.first} maxBytes {call.last} step: {call.factor}(factor)")
    print("#\n# Using devices")
    for rank in range(ranks):
        print(f"#  Rank {rank:2d} Group  0 Pid {4000 + rank:6d} on   stand-in device {rank:2d} [0x07] Stand-in GPU")
    wide = " " if table == "new" else ""
    print(
        "#\n#                                                              out-of-place                       in-place"
    )
    print(f"#       size         count      type   redop    root     time   algbw   busbw {wide}#wrong     time   ...")
    print("#        (B)    (elements)                               (us)  (GB/s)  (GB/s)            (us)  ...")


def row(call: Call, size: int, ranks: int, cells: list[tuple[float, int]]) -> str:
    count = size // BYTES[call.dtype] // (ranks if call.collective in SHARDED else 1)
    redop = "sum" if "reduce" in call.collective else "none"
    root = 0 if call.collective in ("broadcast", "reduce") else -1
    text = f"{size:12d}  {count:12d}  {call.dtype:>8}  {redop:>6}  {root:6d}"
    for time_us, wrong in cells:
        rate = size / time_us / 1e3
        text += f"  {time_us:7.2f}  {rate:6.2f}  {rate:6.2f}  {wrong:5g}"
    return text


def main(argv: list[str]) -> int:
    call = Call.of(argv)
    fault, table = os.environ.get("STAND_IN_FAULT", ""), os.environ.get("STAND_IN_TABLE", "old")
    ranks = int(os.environ.get("STAND_IN_RANKS") or os.environ.get("PMI_SIZE") or os.environ["SLURM_NTASKS"])
    if (os.environ.get("PMI_RANK") or os.environ.get("SLURM_PROCID", "0")) != "0":
        return 0  # where there is a process for each rank, the first plays all
    if fault == "missing library":
        print("all_reduce_perf: error while loading shared libraries: libnccl.so.2", file=sys.stderr)
        return 127
    library = Library(os.environ["STAND_IN_RUNTIME"], ranks, fault)
    library.load()
    copies = ranks if fault == "no mpi" else 1
    for _ in range(copies):
        heading(ranks // copies, call, table)
    failed = 0
    for number, size in enumerate(call.sizes()):
        if fault == "crash" and number == 1:
            print("stand-in: Test NCCL failure common.cu:958 'unhandled cuda error'")
            return 3
        if fault == "cut off" and number == 1:
            return 0
        if fault == "hang" and number == 1:
            sys.stdout.flush()
            time.sleep(600)
        cells = [library.run(call, size, in_place) for in_place in (False, True)]
        failed += sum(ranks for _, wrong in cells if wrong)
        print(row(call, size, ranks, cells))
    library.write_logs()
    print(f"# Out of bounds values : {failed} {'FAILED' if failed else 'OK'}\n# Avg bus bandwidth    : 1\n#")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
