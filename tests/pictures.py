"""Launches that draw no pictures, which takes longest; what the pictures show is tested by itself."""

import pytest


def draw_nothing(patch: pytest.MonkeyPatch) -> None:
    """Let launches in this process draw no pictures while `patch` is in force."""
    patch.setattr("chorale.tuner.launch.launch_report._pictures", lambda *_: [])
