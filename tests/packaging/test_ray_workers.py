"""Ray workers import the driver's chorale, from a wheel as from a checkout."""

from pathlib import Path

import pytest

from tests.command import python
from tests.packaging.build import build_wheel, copy_checkout

pytestmark = [pytest.mark.ray, pytest.mark.timeout(300)]

SCRIPT = """
import sys
from chorale.runners.ray.cluster import NAMESPACE, ray
from chorale.runners.ray.executor import RayExecutor


def location(shared, task):
    import chorale.runners.ray.executor
    import chorale.synth.topology.topology
    return chorale.__file__


working_dir = sys.argv[1:]
ray.init(
    address="local",
    num_cpus=1,
    namespace=NAMESPACE,
    include_dashboard=False,
    log_to_driver=False,
    object_store_memory=100 * 2**20,
    runtime_env={"working_dir": working_dir[0]} if working_dir else None,
)
executor = RayExecutor(workers=1)
print(*executor.map(location, [0]))
executor.close()
ray.shutdown()
"""


def worker_location(folder: Path, path: Path, *arguments: str) -> Path:
    """Return the `chorale.__file__` of a worker of a driver that runs in `folder` with `path` as its PYTHONPATH."""
    folder.mkdir()
    script = folder / "driver.py"
    script.write_text(SCRIPT)
    return Path(python(script, *arguments, folder=folder, PYTHONPATH=str(path)).stdout.split()[-1])


@pytest.mark.slow
def test_workers_import_an_installed_wheel(tmp_path):
    wheel, installed = build_wheel(tmp_path), tmp_path / "installed"
    python("-m", "pip", "install", "--no-deps", "--target", installed, wheel)
    assert worker_location(tmp_path / "elsewhere", installed) == installed / "chorale/__init__.py"


def test_workers_import_a_checkout_that_is_sent_to_them(tmp_path):
    checkout = copy_checkout(tmp_path / "checkout")
    location = worker_location(tmp_path / "elsewhere", checkout, str(checkout))
    assert location.parts[-2:] == ("chorale", "__init__.py")
    assert "working_dir_files" in location.parts  # where Ray unpacks what it sends
