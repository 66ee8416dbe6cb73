"""`python -m tests.live.slurm.packages`: installs what a Slurm cluster of tests needs, where apt is and one is root.

Ends with 1, and says what is missing, where that is not enough.
"""

import os
import shutil
import subprocess
import sys

from tests.live.slurm.cluster import PACKAGES, missing_for_slurm

_INSTALL_LIMIT_S = 600
_QUIET = ("-qq", "-o", "Dpkg::Use-Pty=0")


def main() -> int:
    """Install the packages if something is missing; return 1, with a line that names it, where it still is."""
    if missing_for_slurm() is not None and os.geteuid() == 0 and shutil.which("apt-get") is not None:
        print(f"installing {' '.join(PACKAGES)}", file=sys.stderr)  # noqa: T201 - people wait for it
        _apt("update")
        _apt("install", "--yes", "--no-install-recommends", *PACKAGES)
    missing = missing_for_slurm()
    if missing is not None:
        print(missing, file=sys.stderr)  # noqa: T201 - what it is for
    return 0 if missing is None else 1


def _apt(*words: str) -> None:
    """Run apt-get, which prints why it fails; what is missing then is said afterwards."""
    environment = {**os.environ, "DEBIAN_FRONTEND": "noninteractive"}
    command = ["apt-get", *_QUIET, *words]
    subprocess.run(command, env=environment, stdout=subprocess.DEVNULL, timeout=_INSTALL_LIMIT_S, check=False)


if __name__ == "__main__":
    sys.exit(main())
