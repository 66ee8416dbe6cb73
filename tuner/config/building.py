"""Where synthesis tasks run, and a cache on disk of what was built, for campaigns, service and commands."""

from __future__ import annotations

import contextlib
import hashlib
import logging
import os
from collections.abc import Iterator
from contextlib import contextmanager
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING

import chorale.synth
from chorale.job.files import read_file
from chorale.synth.build.request import BuildRequest, ScheduleRequest
from chorale.synth.build.schedules import BuiltSchedule, LoweredProgram, Observer, unobserved, verified_schedule
from chorale.synth.errors import CheckFailed, ChoraleError, InvalidInput
from chorale.synth.executor.base import Executor, Progress, SerialExecutor
from chorale.synth.methods.auto import AUTO
from chorale.synth.names import name_among
from chorale.synth.processors import core_count
from chorale.synth.schedule.codec import from_parquet, to_parquet
from chorale.synth.verify.verified import VerifiedSchedule
from chorale.synth.verify.verify import verify
from chorale.tuner.files.read_write import write_parts

if TYPE_CHECKING:
    from chorale.synth.build.build import BuildCache, CachingBuilder

SERIAL = "serial"
EXECUTORS = (SERIAL, "processes", "ray")


@contextmanager
def open_executor(name: str, workers: int | None) -> Iterator[Executor]:
    """Yield the executor called `name` with `workers` workers (default: one per core) and close it afterwards."""
    name = name_among("executor", name, EXECUTORS)
    if workers is not None and workers < 1:
        raise InvalidInput("an executor needs at least one worker", workers, "choose --workers 1 or more")
    workers = workers or core_count()
    executor: Executor = SerialExecutor()
    if name == "processes":
        from chorale.synth.executor.processes import ProcessExecutor  # noqa: PLC0415 (sockets, processes)

        executor = ProcessExecutor(workers)
    elif name == "ray":
        from chorale.runners.ray.executor import RayExecutor  # noqa: PLC0415 (half a second to import)

        executor = RayExecutor(workers)
    try:
        yield executor
    finally:
        executor.close()


LARGEST_BYTES = 2**30
FOLDER = "builds"

_log = logging.getLogger("chorale.builds")


class DiskCache:
    """A BuildCache in `folder` with files `ID.schedule` and `ID.program`; ID is the content id of request and
    `version`.

    The first line of a file is the SHA-256 of the rest: a Parquet file or the text of a program. Its content is not
    trusted: schedules are verified and programs checked as if they were new. Damaged files are deleted and built again.
    Files are written atomically, so processes may share the folder; beyond `largest_bytes` the least recently used
    files are deleted. A folder that is not writable is no error.

    version: content id of the code that builds, see `code_version`
    """

    def __init__(self, folder: Path, version: str, largest_bytes: int = LARGEST_BYTES) -> None:
        self._folder = folder
        self._version = version
        self._largest_bytes = largest_bytes

    def holds(self, request: ScheduleRequest) -> bool:
        """Return whether there is a file for the schedule of `request`, valid or not."""
        return self._path(request.id, "schedule").exists()

    def schedule(self, request: ScheduleRequest) -> BuiltSchedule | None:
        path = self._path(request.id, "schedule")
        content = self._content(path)
        if content is None:
            return None
        try:
            schedule = from_parquet(content, lambda _spec: request.topology)
            if (schedule.topology.id, schedule.collective) != (request.topology.id, request.collective):
                raise CheckFailed(
                    "a cached file has other content than its name says: {}", path, "Chorale builds it again"
                )
            return BuiltSchedule(verify(schedule, request.options.verified_bytes), content)
        except ChoraleError as error:
            _drop(path, error)
            return None

    def add_schedule(self, request: ScheduleRequest, built: BuiltSchedule) -> None:
        self._write(self._path(request.id, "schedule"), built.file)

    def program(self, request: BuildRequest, schedule: BuiltSchedule) -> LoweredProgram | None:
        path = self._path(request.id, "program")
        content = self._content(path)
        if content is None:
            return None
        try:
            from chorale.synth.programs.program import Program  # noqa: PLC0415 (schedules are read without it)
            from chorale.synth.targets.lift import read_checked  # noqa: PLC0415 (as above)

            text, verified = content.decode(), schedule.verified.schedule
            program = read_checked(content, verified.topology)
            if not isinstance(program, Program) or (program.target, program.origin) != (
                request.lowering.target,
                verified.id,
            ):
                raise CheckFailed(
                    "a cached file has other content than its name says: {}", path, "Chorale builds it again"
                )
            return LoweredProgram(program, text, program)
        except (ChoraleError, UnicodeDecodeError) as error:
            _drop(path, error)
            return None

    def add_program(self, request: BuildRequest, program: LoweredProgram) -> None:
        if program.text.startswith("<"):  # plans of MSCCL++ do not say which schedule they are of
            self._write(self._path(request.id, "program"), program.text.encode())

    def _path(self, request_id: str, kind: str) -> Path:
        name = hashlib.sha256(f"{self._version} {request_id}".encode()).hexdigest()
        return self._folder / f"{name}.{kind}"

    def _content(self, path: Path) -> bytes | None:
        try:
            digest, _, content = read_file(str(path)).partition(b"\n")
            os.utime(path)  # it was used now
        except (ChoraleError, OSError):
            return None
        if digest.decode(errors="replace") != hashlib.sha256(content).hexdigest():
            _drop(path, "the content is not that which was written")
            return None
        return content

    def _write(self, path: Path, content: bytes) -> None:
        try:
            self._folder.mkdir(exist_ok=True)
            write_parts(path, (hashlib.sha256(content).hexdigest().encode(), b"\n", content))
            files = []
            for entry in os.scandir(self._folder):
                with contextlib.suppress(FileNotFoundError):  # another process made room
                    status = entry.stat()
                    files.append((status.st_mtime_ns, status.st_size, entry.path))
            excess_bytes = sum(size_bytes for _, size_bytes, _ in files) - self._largest_bytes
            for _, size_bytes, least_recent in sorted(files):
                if excess_bytes <= 0:
                    break
                with contextlib.suppress(FileNotFoundError):
                    os.unlink(least_recent)
                excess_bytes -= size_bytes
        except (ChoraleError, OSError) as error:
            _log.info("%s is not held on disk: %s", path.name, error)


def _drop(path: Path, reason: object) -> None:
    _log.warning("%s is damaged and built again: %s", path, reason)
    with contextlib.suppress(OSError):
        path.unlink()


@lru_cache
def code_version() -> str:
    """Return the content id of the code of `synth`: what another version built is not used."""
    digest = hashlib.sha256()
    root = Path(chorale.synth.__path__[0])
    for path in sorted(root.rglob("*.py")):
        digest.update(f"{path.relative_to(root)}\0".encode() + path.read_bytes())
    return digest.hexdigest()


SLOW_METHODS = frozenset({AUTO, "alltoall", "forest", "forest-phases", "blink"})
"""Methods whose synthesis takes longer than reading a stored schedule and verifying it again."""


def verified_from_cache(
    request: ScheduleRequest,
    home: Path | None,
    executor: Executor,
    progress: Progress | None = None,
    observe: Observer = unobserved,
) -> tuple[VerifiedSchedule, bool]:
    """Return the verified schedule of `request`, and whether it came from the cache in the data folder.

    Only schedules of `SLOW_METHODS` are cached, and only if `home` is an existing folder. Reading and verifying a
    cached schedule is observed as stage `cache`; otherwise the stages and errors are those of
    `chorale.synth.build.schedules.verified_schedule`.
    """
    if home is None or request.method not in SLOW_METHODS or not home.is_dir():
        return verified_schedule(request, executor, progress, observe), False
    cache = DiskCache(home / FOLDER, code_version())
    if cache.holds(request):
        with observe("cache"):
            built = cache.schedule(request)
        if built is not None:
            return built.verified, True
    verified = verified_schedule(request, executor, progress, observe)
    cache.add_schedule(request, BuiltSchedule(verified, to_parquet(verified.schedule)))
    return verified, False


def shared_builder(home: Path) -> CachingBuilder:
    """Return a builder with a memory cache, and with the cache of the data folder if that exists."""
    from chorale.synth.build.build import CachingBuilder, MemoryCache  # noqa: PLC0415 (only who lowers waits for it)

    disk: tuple[BuildCache, ...] = (DiskCache(home / FOLDER, code_version()),) if home.is_dir() else ()
    return CachingBuilder(MemoryCache(), *disk)
