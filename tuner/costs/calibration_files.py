"""Calibrations as files: what `chorale run --calibrate --json` printed."""

from __future__ import annotations

import json

from chorale.runners.simulated.calibration import Calibration
from chorale.synth.errors import InvalidInput
from chorale.tuner.files import read_file


def load_calibration(path: str) -> Calibration:
    """Return the calibration in the file at `path`, alone or under the key `calibration`."""
    try:
        document = json.loads(read_file(path))
    except ValueError as error:
        way_out = "give the JSON that `chorale run --calibrate --json` printed"
        raise InvalidInput("a calibration file must be JSON", f"{path}: {error}", way_out) from None
    inner = document.get("calibration") if isinstance(document, dict) else None
    return Calibration.from_json(document if inner is None else inner)
