"""A service that is started by default settings: nothing of it is reached from outside."""

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tests.security.open_ports import open_ports
from tests.waiting import free_port, until

pytestmark = [pytest.mark.timeout(600), pytest.mark.slow]

REPOSITORY = Path(__file__).parents[2]


def test_every_port_of_a_service_is_on_loopback(tmp_path: Path) -> None:
    port = free_port()
    environment = {key: value for key, value in os.environ.items() if not key.startswith(("RAY_", "CHORALE_"))}
    environment |= {"HOME": str(tmp_path), "CHORALE_HOME": str(tmp_path / "data"), "PYTHONPATH": str(REPOSITORY)}
    command = [sys.executable, "-m", "chorale", "serve", "--port", str(port)]
    pipes = {"stdout": subprocess.DEVNULL, "stderr": subprocess.PIPE}
    with subprocess.Popen(command, env=environment, text=True, cwd=REPOSITORY, umask=0o022, **pipes) as service:
        assert service.stderr is not None
        assert any("web page, do not share this address" in line for line in service.stderr)
        until(lambda: len(open_ports(service.pid)) > 5, 60)
        ports = open_ports(service.pid)
        folder = tmp_path / "data"
        modes = {str(path): oct(path.stat().st_mode) for path in [folder, *folder.rglob("*")]}
        service.send_signal(signal.SIGTERM)
        service.stderr.read()
    assert ports[port]
    assert all(ports.values())
    assert [path for path, mode in modes.items() if not mode.endswith("00")] == []
