"""Wheels in new environments, one for each Python that Chorale supports and this machine has, and as a tool.

    python -m tests.packaging.pythons [3.12 3.13]

Prints what each step took and said; exit code 1 if one fails. A version that is not here is named, and is no failure.
Any Python that Chorale supports runs it, without packages: it needs no `make setup`.
"""

import argparse
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

from tests.packaging.build import ROOT, build_wheel

VERSIONS = ("3.11", "3.12", "3.13")
DEMO_LIMIT_S = 60
_STEP_LIMIT_S = 300
_IMPORT = "import time; start = time.perf_counter(); import chorale; print(f'{time.perf_counter() - start:.4f} s')"
_PRODUCT = """
import chorale as ch
schedule = ch.topology("a100:2").synthesize("allreduce")
print(schedule, schedule.lower("msccl-xml").save("a.xml"))
"""
COMMANDS = {
    "version": ("chorale", "--version"),
    "import": ("python", "-c", _IMPORT),
    "doctor": ("chorale", "doctor", "--json"),
    "synth": ("chorale", "synth", "a100:2", "-o", "a.parquet"),
    "shipped example": ("chorale", "tune", "examples/quickstart.yaml", "--dry-run"),
    "python": ("python", "-c", _PRODUCT),
    "demo": ("chorale", "demo", "--json"),
}
"""Step -> what is called in the environment."""
INSTALLERS = {"uv": ("tool", "install"), "pipx": ("install",)}
ALSO_FINE = {"doctor": {3}, "shipped example": {3}}
"""Exit codes of steps that need the extra `tune`: they say what to install."""


def interpreter(version: str) -> Path | None:
    """Return a Python of `version` that starts: from the PATH, else from pyenv's folder; None if there is none."""
    named = [shutil.which(f"python{version}")]
    installed = sorted(Path(os.environ.get("PYENV_ROOT", Path.home() / ".pyenv")).glob(f"versions/{version}.*"))
    for path in (*named, *(str(folder / "bin" / "python") for folder in installed)):
        if (
            path is not None
            and subprocess.run([path, "-c", "import venv"], capture_output=True, check=False).returncode == 0
        ):
            return Path(path)
    return None


def with_pip(python: Path, folder: Path) -> Path:
    """Make an environment of `python` in `folder` that has the pinned pip; return its Python.

    The pip that comes with an older Python cannot install for a newer one.
    """
    subprocess.run([python, "-m", "venv", folder], check=True)
    made = folder / "bin" / "python"
    pip = [made, "-m", "pip", "install", "--quiet", "--upgrade", "-c", ROOT / "constraints.txt", "pip"]
    subprocess.run(pip, check=True, timeout=_STEP_LIMIT_S)
    return made


def install(python: Path, wheel: Path, folder: Path, installer: Path) -> None:
    """Make a new environment in `folder`; install `wheel` and what it needs, in the pinned versions, with the pip of
    the Python `installer`."""
    subprocess.run([python, "-m", "venv", "--without-pip", folder], check=True)
    pip = [installer, "-m", "pip", "--python", folder / "bin" / "python", "install", "--quiet", "--no-compile"]
    subprocess.run([*pip, "-c", ROOT / "constraints.txt", wheel], check=True, timeout=_STEP_LIMIT_S)


def wheel_for(version: str, python: Path, folder: Path) -> Path:
    """Return the wheel for a version: from 3.12 on one serves all, 3.11 has its own."""
    kind = folder / ("3.11" if version == "3.11" else "3.12 and later")
    built = list(kind.glob("chorale_collectives-*.whl"))
    if built:
        return built[0]
    start = time.monotonic()
    wheel = build_wheel(kind, with_pip(python, kind / "pip"))
    print(f"{wheel.name}: {wheel.stat().st_size / 1e6:.1f} MB, built in {time.monotonic() - start:.1f} s", flush=True)
    return wheel


def failures(version: str, python: Path, wheel: Path, folder: Path, installer: Path) -> Iterator[str]:
    """Print the steps of one Python; yield those that failed."""
    environment, work = folder / "environment", folder / "work"
    work.mkdir(parents=True)
    start = time.monotonic()
    install(python, wheel, environment, installer)
    print(f"Python {version}: installed in {time.monotonic() - start:.1f} s", flush=True)
    variables = {name: value for name, value in os.environ.items() if not name.startswith(("PYTHON", "CHORALE"))}
    variables |= {"PATH": f"{environment / 'bin'}:{variables['PATH']}", "HOME": str(work)}
    for step, command in COMMANDS.items():
        start = time.monotonic()
        done = subprocess.run(
            command, cwd=work, env=variables, capture_output=True, text=True, check=False, timeout=_STEP_LIMIT_S
        )
        took_s = time.monotonic() - start
        said = (done.stderr if done.returncode else done.stdout).strip().splitlines() or [""]
        print(f"  {step}: {took_s:.1f} s, exit code {done.returncode}; {said[0][:90]}", flush=True)
        if done.returncode not in {0, *ALSO_FINE.get(step, ())}:
            yield f"{version} {step}: exit code {done.returncode}: {done.stderr.strip()[-500:]}"
        if step == "demo" and took_s > DEMO_LIMIT_S:
            yield f"{version} {step}: {took_s:.0f} s, more than {DEMO_LIMIT_S}"


def tool_failures(wheel: Path, folder: Path) -> Iterator[str]:
    """Install the wheel as a tool with uv and with pipx, where they are; yield what failed."""
    variables = os.environ | {"HOME": str(folder), "UV_TOOL_DIR": str(folder / "uv"), "PIPX_HOME": str(folder / "pipx")}
    for tool, words in INSTALLERS.items():
        if shutil.which(tool) is None:
            print(f"{tool}: not on this machine")
            continue
        binaries = folder / f"{tool}-bin"
        variables |= {"UV_TOOL_BIN_DIR": str(binaries), "PIPX_BIN_DIR": str(binaries)}
        start = time.monotonic()
        done = subprocess.run(
            [tool, *words, wheel], env=variables, capture_output=True, text=True, check=False, timeout=_STEP_LIMIT_S
        )
        if done.returncode:
            yield f"{tool}: {done.stderr.strip()[-500:]}"
            continue
        said = subprocess.run([binaries / "chorale", "--version"], capture_output=True, text=True, check=False).stdout
        print(f"{tool} {' '.join(words)}: {time.monotonic() - start:.1f} s; {said.strip()}", flush=True)
        if not said.startswith("chorale "):
            yield f"{tool}: the command does not start"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("versions", nargs="*", default=VERSIONS, help="3.11, 3.12 or 3.13; default: all")
    versions = parser.parse_args().versions
    failed = list[str]()
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        pip = with_pip(Path(sys.executable), folder / "pip")
        for version in versions:
            python = interpreter(version)
            if python is None:
                print(f"Python {version}: not on this machine")
                continue
            wheel = wheel_for(version, python, folder / "wheels")
            failed += failures(version, python, wheel, folder / version, pip)
        failed += tool_failures(
            wheel_for("{}.{}".format(*sys.version_info), Path(sys.executable), folder / "wheels"), folder / "tools"
        )
    print("\n".join(failed))
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
