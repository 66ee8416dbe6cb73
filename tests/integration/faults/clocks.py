"""Jumps of the wall clock, as the Python processes of a launch see it; the machine's own clock stays."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from tests.integration.faults.hosts import ROOT
from tests.integration.faults.launched import Launched, Setting, Strike, alone
from tests.integration.faults.rows import Fault

DAY_S = 86400
_CLOCK = """
import os, time
_time, _time_ns, _file = time.time, time.time_ns, os.environ["CHORALE_TEST_CLOCK"]
def _offset():
    try:
        return int(open(_file).read() or 0)
    except OSError:
        return 0
time.time = lambda: _time() + _offset()
time.time_ns = lambda: _time_ns() + _offset() * 10**9
"""


@contextmanager
def watched_clock(folder: Path) -> Iterator[Setting]:
    """Every Python process of the launch adds to its wall clock what a file says."""
    with alone(folder) as setting:
        (folder / "clock").mkdir()
        (folder / "clock" / "sitecustomize.py").write_text(_CLOCK)
        setting.environment["PYTHONPATH"] = f"{folder / 'clock'}:{ROOT}"
        setting.environment["CHORALE_TEST_CLOCK"] = str(folder / "offset")
        yield setting


def jump(seconds: int) -> Strike:
    def strike(launched: Launched) -> None:
        (launched.setting.folder / "offset").write_text(str(seconds))

    return strike


FAULTS = {
    "wall clock a day ahead (injected)": Fault(jump(DAY_S), watched_clock),
    "wall clock a day back (injected)": Fault(jump(-DAY_S), watched_clock),
}
