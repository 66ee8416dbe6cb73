"""Build the preloaded library for the installed MPI.

MPI handles (communicators, types) are integers in MPICH and addresses in Open MPI 5, which does not implement MPI's
standard ABI. So the library only works with programs that were compiled for the MPI for which it was built. The library
is linked with this MPI, so that MPI's functions are found even if a program loads MPI late, as Python does. If a
program was compiled for another MPI (for example for the standard ABI, with mpicc_abi), the library prints a message
and ends the program. For such a program, `chorale job mpi-preload MPICC` builds another library.
"""

import os
import re
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

from chorale.runners.engine.build import NativeTarget, build_native, native_folder
from chorale.runners.engine.library import NATIVE as ENGINE
from chorale.runners.measurement.private_files import temporary_folder
from chorale.runners.mpi.launch import find_mpiexec
from chorale.synth.errors import InvalidInput, Unavailable

NATIVE = Path(__file__).parent / "native"
_NAME = "libchorale_mpi_preload.so"
_PACKAGES = Path(__file__).absolute().parents[3]
"""Folder from which the library's Python process imports the table check."""
_NO_CPP = ("-DOMPI_SKIP_MPICXX=1", "-DMPICH_SKIP_MPICXX=1")
"""Options that leave out the C++ bindings (removed in MPI 3), which need libraries that only C++ programs link."""


def preload_library(mpicc: Path | None = None) -> Path:
    """Return the path of the preloaded library; build the library first if necessary.

    mpicc: compiler of the MPI that programs use; by default the one next to mpiexec

    Raises Unavailable if MPI, its header or a compiler is missing.
    """
    mpicc, way_out = mpicc or find_mpicc(), "name an mpicc that works"
    try:  # MPI's preprocessor definitions, header folders and library
        done = subprocess.run([mpicc, "-show"], capture_output=True, text=True, timeout=20.0, check=True)  # noqa: S603
    except (OSError, subprocess.SubprocessError) as error:
        found = getattr(error, "strerror", None) or error
        raise Unavailable("mpicc does not say where MPI is: {}", f"{mpicc}: {found}", way_out) from error
    words = shlex.split(done.stdout)
    definitions = [*_NO_CPP, *(word for word in words if word.startswith("-D"))]
    includes, folders = ([Path(word[2:]) for word in words if word.startswith(flag)] for flag in ("-I", "-L"))
    names = [f"lib{word[2:]}.so" for word in words if word in ("-lmpi", "-lmpi_abi", "-lmpich")] or ["libmpi.so"]
    libraries = [folder / name for name in names for folder in folders if (folder / name).exists()]
    if not libraries:
        raise Unavailable("MPI's library was not found: {}", f"no {' or '.join(names)} in {folders}", way_out)
    library = libraries[0].absolute()
    sources = (*sorted(ENGINE.glob("*.cpp")), *sorted(NATIVE.glob("*.cpp")))
    places = {"PYTHON": sys.executable, "PACKAGES": _PACKAGES, "MPI": library}
    constants = (f'-DCHORALE_{name}="{place}"' for name, place in places.items())
    loading = "-fvisibility=hidden", f"-Wl,-z,lazy,-rpath,{library.parent}"
    flags = ("-O3", "-shared", "-fPIC", *loading, *constants, *definitions)
    target = NativeTarget(_NAME, sources, flags, (ENGINE, NATIVE, *includes), (str(library),))
    return build_native(target, _loadable(native_folder()))


def _loadable(folder: Path) -> Path:
    """Return `folder`, or a temporary folder if the path contains characters that LD_PRELOAD does not allow."""
    for place in (folder, temporary_folder() / "native"):
        if not set(" \t\n:$") & set(str(place)):
            return place
    way_out = "set XDG_CACHE_HOME to a folder without spaces, colons and dollar signs in its path"
    raise Unavailable("LD_PRELOAD does not work with the path {}", str(folder), way_out)


def find_mpicc(name: str = "mpicc") -> Path:
    """Return the path of the compiler `name` next to mpiexec or on PATH. Raises Unavailable if it does not exist."""
    mpiexec = Path(find_mpiexec())
    beside = mpiexec.parent / name
    path = str(beside) if beside.exists() else shutil.which(name)
    if path is None:
        found = f"{name} is neither next to {mpiexec} nor on PATH"
        raise Unavailable("the preloaded library needs MPI's compiler: {}", found, "install MPI's header files")
    return Path(path)


def stable_library(mpicc: str | None = None, folder: Path | None = None) -> Path:
    """Return a short path to the library for `mpicc` that does not change when the library is built again.

    mpicc:  a path, or the name of a file next to mpiexec or on PATH; by default the mpicc next to mpiexec
    folder: folder for a copy of the library, created if its parent exists. If None, the path is a link to the library.

    Raises InvalidInput if the folder cannot be written, and Unavailable if MPI, its header or a compiler is missing.
    """
    library = preload_library(find_mpicc(mpicc or "mpicc"))
    kind = "" if mpicc is None else re.sub("[^a-z0-9]+", "-", f"-{Path(mpicc).name.lower()}")
    path = (folder or _loadable(native_folder()).parent).absolute() / f"libchorale_mpi{kind}.so"
    fresh = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        if folder is None:
            fresh.symlink_to(library)
        else:
            folder.mkdir(exist_ok=True)
            shutil.copyfile(library, fresh)
            fresh.chmod(0o755)
        fresh.replace(path)  # running jobs keep the old file
    except OSError as error:
        way_out = "name a folder that can be written, in one that exists"
        raise InvalidInput(
            "cannot create the folder of the library: {}", f"{path.parent}: {error.strerror}", way_out
        ) from error
    return path
