"""What happens at `import torch`, in another process: fast, and never an error."""

import subprocess
import sys

from tests.live.job.torch.launch import needs_torch

WITHOUT_DISTRIBUTED = """
import sys, types
torch = types.ModuleType("torch")
torch.distributed = types.ModuleType("torch.distributed")
sys.modules |= {"torch": torch, "torch.distributed": torch.distributed}
torch.distributed.is_available = lambda: False
from chorale.job.torch.registration import register
register()
"""

LIGHT = """
import sys, torch
before = dict(torch.distributed.Backend.default_device_backend_map)
from chorale.job.torch.registration import register
register()
register()
assert "chorale" in torch.distributed.Backend.backend_list
assert torch.distributed.Backend.default_device_backend_map == before
assert not {"ray", "mlflow", "scipy", "chorale.runners"} & set(sys.modules)
"""


def _run(script: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=False, timeout=60)


def test_what_is_wrong_is_a_line_and_no_error():
    done = _run(WITHOUT_DISTRIBUTED)
    assert done.returncode == 0, done.stderr
    assert done.stderr.splitlines() == [
        "chorale: no backend for torch.distributed: RuntimeError: this build of torch has no torch.distributed"
    ]


@needs_torch
def test_it_is_light_and_nobodys_default():
    done = _run(LIGHT)
    assert (done.returncode, done.stderr) == (0, "")
