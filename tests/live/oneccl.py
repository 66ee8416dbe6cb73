"""What live tests of the oneCCL runner share."""

import pytest

from chorale.runners.oneccl.install import DEFAULT_VERSION, INSTALL, VERSIONS, Version, find_parts
from chorale.synth.errors import Unavailable


def _is_installed(version: Version) -> bool:
    try:
        return find_parts(version) is not None
    except Unavailable:
        return False


def _mark(version: Version) -> pytest.MarkDecorator:
    reason = f"THE ONECCL RUNNER IS NOT TESTED WITH {version}: its part is missing, run: {INSTALL}"
    return pytest.mark.skipif(not _is_installed(version), reason=reason)


needs_oneccl = _mark(DEFAULT_VERSION)
VERSION_PARAMS = [
    pytest.param(version, marks=[_mark(version), *([] if version == DEFAULT_VERSION else [pytest.mark.slow])])
    for version in VERSIONS
]
"""Every version of oneCCL, skipped where its parts are missing; all but the default are slow tests."""
