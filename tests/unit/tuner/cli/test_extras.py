"""What an installation without extras can do, and what commands say that need one."""

import re
import subprocess
import sys
import tomllib
from importlib.metadata import packages_distributions
from pathlib import Path

import pytest

import chorale
from chorale.synth.errors import Unavailable
from chorale.synth.extras import EXTRAS, missing_extra

ROOT = Path(__file__).parents[4]
OPTIONAL = sorted({module.partition(".")[0] for modules in EXTRAS.values() for module in modules})

WITHOUT_EXTRAS = f"""
import sys

class Nowhere:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in {OPTIONAL!r}:
            raise ModuleNotFoundError(f"No module named {{name!r}}", name=name)

sys.meta_path.insert(0, Nowhere())
"""
COMMAND = f"""{WITHOUT_EXTRAS}
from chorale.tuner.cli.main import main
if __name__ == "__main__":
    main(sys.argv[1:])
"""


def light(folder: Path, *arguments: str, code: str = COMMAND) -> subprocess.CompletedProcess[str]:
    """Run `chorale` in `folder`, where none of the libraries of extras can be imported."""
    environment = {"PATH": "/usr/bin:/bin", "CHORALE_HOME": str(folder / "home")}
    return subprocess.run(
        [sys.executable, "-c", code, *arguments],
        cwd=folder,
        env=environment,
        capture_output=True,
        text=True,
        check=False,
        timeout=100,
    )


SEVERAL_COMMANDS = f"""{WITHOUT_EXTRAS}
from chorale.tuner.cli.main import main
if __name__ == "__main__":
    for line in sys.argv[1:]:
        try:
            main(line.split())
        except SystemExit as end:
            if end.code:
                sys.exit(f"{{line}}: exit {{end.code}}")
"""


def test_the_core_designs_verifies_lowers_simulates_and_runs(tmp_path: Path):
    lines = (
        "synth bfb torus:3x3 --collective allreduce -o made.parquet",
        "synth forest a100:2 --json",
        "bound torus:3x3",
        "topology show torus:3x3",
        "verify made.parquet",
        "lower made.parquet --target msccl-xml -o made.xml",
        "lift made.xml --spec torus:3x3",
        "simulate made.parquet --sizes 1MiB --link-gbps 1",
        "run made.parquet --runner simulated --sizes 1MiB --link-mbps 100",
        "find --nodes 12 --degree 3",
        "alltoall --help",
        "export made.parquet -o job",
        "table --help",
    )
    done = light(tmp_path, *lines, code=SEVERAL_COMMANDS)
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize(
    ("line", "extra"),
    [
        (f"tune {ROOT / 'examples' / 'quickstart.yaml'}", "tune"),
        ("ui", "tune"),
        ("best --topology torus:4x4 --collective allreduce --size 1MiB", "tune"),
        ("serve", "serve"),
        ("token list", "serve"),
        ("topology show torus:3x3 --plot made.png", "plot"),
    ],
)
def test_a_command_that_needs_an_extra_says_which(line: str, extra: str, tmp_path: Path):
    done = light(tmp_path, *line.split())
    assert done.returncode == 3, done.stderr
    assert done.stderr.splitlines()[-1].endswith(f"run: pip install 'chorale-collectives[{extra}]'")


def test_from_python_only_campaigns_need_an_extra(tmp_path: Path):
    code = f"""{WITHOUT_EXTRAS}
import chorale as ch
made = ch.synthesize("ring:4", "allgather", method="bfb")
print(ch.run(made, "64KiB", "simulated", link_mbps=100).runner)
ch.tune
"""
    done = light(tmp_path, code=code)
    assert done.stdout.startswith("simulated"), done.stderr
    assert "Unavailable: this needs the extra 'tune'" in done.stderr


def test_other_missing_modules_are_no_extras():
    assert missing_extra(ModuleNotFoundError("no", name="psycopg")) is None
    assert (
        missing_extra(ModuleNotFoundError("no", name="ray")).way_out == "run: pip install 'chorale-collectives[tune]'"
    )
    assert missing_extra(ModuleNotFoundError("no", name="ray.serve")).way_out.endswith("[serve]'")
    with pytest.raises(AttributeError):
        chorale.nothing  # noqa: B018
    assert issubclass(Unavailable, Exception)


def test_the_extras_of_the_project_bring_these_modules():
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    core = {_name(requirement) for requirement in project["dependencies"]}
    distributions = packages_distributions()
    for extra, modules in EXTRAS.items():
        brought = {_name(requirement) for requirement in project["optional-dependencies"][extra]}
        for module in modules:
            names = {name.lower().replace("_", "-") for name in distributions[module.partition(".")[0]]}
            assert not names & core
            assert names & brought or module in {"starlette", "uvicorn"}, module  # of FastAPI and Ray Serve


def _name(requirement: str) -> str:
    matched = re.match(r"[A-Za-z0-9_-]+", requirement)
    assert matched
    return matched[0].lower()
