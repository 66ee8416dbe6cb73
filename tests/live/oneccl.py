"""What live tests of the oneCCL runner share."""

from __future__ import annotations

import pytest

from chorale.runners.oneccl.build import INSTALL, find_parts
from chorale.synth.errors import Unavailable


def _is_installed() -> bool:
    try:
        return find_parts() is not None
    except Unavailable:
        return False


needs_oneccl = pytest.mark.skipif(
    not _is_installed(), reason=f"THE ONECCL RUNNER IS NOT TESTED: its part is missing, run: {INSTALL}"
)
