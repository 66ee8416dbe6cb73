"""Faults of processes of a launch that works in processes of its host; `tests.soak` has those of the launch itself."""

from tests.integration.faults.launched import Launched
from tests.integration.faults.rows import Fault


def kill_workers(launched: Launched) -> None:
    for worker in launched.workers():
        worker.kill()


FAULTS = {
    "workers killed": Fault(kill_workers),
    "fork server killed": Fault(lambda launched: launched.child("forkserver").kill()),
}
