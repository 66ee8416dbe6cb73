"""Builds native code from its sources at first use, once per version of sources, flags and compiler.

Wheels contain some prebuilt files. Unless CXX is set, a prebuilt file is used if it was built from the same sources and
with the same flags.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import subprocess
import sys
import tempfile
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path

from chorale.synth.errors import Unavailable
from chorale.synth.processors import core_count

Command = tuple[str, ...]

COMPILERS = ("g++", "clang++", "c++")
LOG, LOCK = "build.log", "build.lock"
SHIPPED = Path(__file__).with_name("shipped")
"""Folder of prebuilt files in the wheel. Each file is in a subfolder named after the hash of its sources and flags."""

_FLAGS = ("-std=c++17", "-O2", "-Wall", "-Wextra")
_LIMIT_S = 900.0


@dataclass(frozen=True, slots=True)
class NativeTarget:
    """A native file to build: a program, or a shared library if `flags` say so.

    name:     file name
    sources:  the .cpp files; the cache key also covers headers next to them and in `includes`
    flags:    compiler flags, in addition to the language standard and the warnings
    includes: folders of headers
    linked:   arguments after the sources on the command line: archives, then linker options
    """

    name: str
    sources: tuple[Path, ...]
    flags: tuple[str, ...] = ()
    includes: tuple[Path, ...] = ()
    linked: tuple[str, ...] = ()


def native_folder() -> Path:
    """Return the folder for this user's native code: $XDG_CACHE_HOME/chorale/native or ~/.cache/chorale/native.

    It is never in a data folder, because this code gets executed, and data folders are shared, copied and unpacked from
    archives. If the home folder is not writable, the code goes to this user's folder for temporary files.
    """
    from chorale.runners.measurement.private_files import make_private, temporary_folder  # noqa: PLC0415 - as in build_native

    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path(os.path.expanduser("~")) / ".cache")
    with suppress(OSError):
        cache.mkdir(mode=0o700, parents=True, exist_ok=True)
    folder = cache.absolute() / "chorale"
    return (folder if make_private(folder) else temporary_folder()) / "native"


def build_native(target: NativeTarget, folder: Path | None = None) -> Path:
    """Return the path of the file that `target` describes; build it first if necessary.

    Its path under `folder` (default: `native_folder()`) contains a hash of all inputs; the build log is next to it. If
    several processes need the file, for example the ranks of a job, one process builds it and the others wait. Raises
    Unavailable without a compiler, or if the build fails.
    """
    shipped = shipped_file(target, SHIPPED)
    if shipped.exists() and "CXX" not in os.environ:
        return shipped
    compiler = find_compiler()
    path = (folder or native_folder()).absolute() / target.name / _key(target, compiler) / target.name
    if path.exists():
        return path
    from chorale.runners.measurement.machine import acquire_lock  # noqa: PLC0415 - only needed to build

    try:
        path.parent.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        rule, way_out = "the folder of native code cannot be written: {}", "set XDG_CACHE_HOME to one"
        raise Unavailable(rule, f"{path.parent}: {error.strerror}", way_out) from error
    refusal = Unavailable("native code was not built in time: {}", f"another process is building {path}", "try again")
    lock = acquire_lock(path.parent / LOCK, _LIMIT_S, refusal)
    try:
        if not path.exists():
            _build(target, compiler, path)
    finally:
        lock.release()
    return path


def shipped_file(target: NativeTarget, folder: Path) -> Path:
    """Return the path of `target` in `folder`, a folder of prebuilt files. The file itself may be missing."""
    return folder / _hash_of_sources(target, hashlib.sha256()) / target.name


def has_compiler() -> bool:
    try:
        find_compiler()
    except Unavailable:
        return False
    return True


def find_compiler() -> Command:
    """Return the C++ compiler's command: CXX, else the first installed one, else the one in the package ziglang.
    Raises Unavailable if there is none.
    """
    chosen = os.environ.get("CXX")
    compiler = shutil.which(chosen) if chosen else next(filter(None, map(shutil.which, COMPILERS)), None)
    if compiler is not None:
        return (compiler,)
    if not chosen and find_spec("ziglang") is not None:
        return (sys.executable, "-P", "-m", "ziglang", "c++")
    rule = "there is no C++ compiler, which builds the engine: {}"
    way_out = "install one, for example: apt-get install g++ (or dnf install gcc-c++, or pip install ziglang)"
    raise Unavailable(rule, f"CXX={chosen}" if chosen else f"none of {', '.join(COMPILERS)}", way_out)


def compile_native(target: NativeTarget, path: Path) -> None:
    """Build `target` and move it to `path`, replacing an existing file.

    Raises Unavailable without a compiler, or if the build fails; the reason is then in `build.log` in the same folder.
    """
    _build(target, find_compiler(), path)
    (path.parent / LOG).unlink()


def _key(target: NativeTarget, compiler: Command) -> str:
    version = subprocess.run([*compiler, "--version"], capture_output=True, check=False).stdout  # noqa: S603
    return _hash_of_sources(target, hashlib.sha256(version))


def _hash_of_sources(target: NativeTarget, digest: hashlib._Hash) -> str:
    """Add the flags and all source files of `target` to `digest`; return the first digits of the hash."""
    digest.update(repr((_FLAGS, target.flags, [Path(item).name for item in target.linked])).encode())
    folders = {*(source.parent for source in target.sources), *target.includes}
    headers = {header for folder in folders for header in folder.glob("*.h*")}
    archives = [path for path in map(Path, target.linked) if path.is_file()]
    for path in (*sorted({*target.sources, *headers}), *archives):
        digest.update(path.name.encode() + b"\0" + hashlib.sha256(path.read_bytes()).digest())
    return digest.hexdigest()[:16]


def _build(target: NativeTarget, compiler: Command, path: Path) -> None:
    with tempfile.TemporaryDirectory(prefix="build-", dir=path.parent) as work:
        result, log = Path(work) / target.name, path.parent / LOG
        objects = [str(Path(work) / f"{number}.o") for number in range(len(target.sources))]
        base = [*compiler, *_FLAGS, *target.flags]
        folders = [f"-I{folder}" for folder in target.includes]
        compiled = [[*base, *folders, "-c", str(s), "-o", o] for s, o in zip(target.sources, objects, strict=True)]
        with ThreadPoolExecutor(core_count()) as threads:
            texts = list(threads.map(lambda command: _run(command, log), compiled))
        texts.append(_run([*base, *objects, *target.linked, "-o", str(result)], log))
        log.write_text("".join(texts))
        result.replace(path)


def _run(command: list[str], log: Path) -> str:
    """Run the compiler; return the command and its output. If it fails, `log` contains both."""
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=_LIMIT_S, check=False)  # noqa: S603
    except subprocess.TimeoutExpired as error:
        raise Unavailable("native code was not built in time: {}", error, "try again") from error
    text = f"{' '.join(command)}\n{done.stdout}{done.stderr}"
    if done.returncode:
        log.write_text(text)
        way_out = "its last lines say why; CXX chooses another compiler"
        raise Unavailable("native code could not be built, {}", f"see {log}", way_out)
    return text
