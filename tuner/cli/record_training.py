"""`chorale record-training`: the profile of a model from PyTorch, where it is installed."""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import Annotated

import typer

from chorale.runners.measurement.torch_profile import load_model, record_profile, require_torch
from chorale.tuner.cli.choices import file_to_write
from chorale.tuner.cli.output import results
from chorale.tuner.costs.training_profile import load_profile
from chorale.tuner.files.read_write import write_file


def register(app: typer.Typer) -> None:
    """Add the command to `app`."""
    app.command("record-training")(record_training)


def record_training(
    model: Annotated[str, typer.Argument(metavar="MODULE:FUNCTION", help="A function that returns (model, batch).")],
    output: Annotated[
        Path,
        typer.Option(
            "--output", "-o", callback=file_to_write, metavar="FILE", help="Where to write the profile (.json)."
        ),
    ],
) -> None:
    """Record how long the layers of a PyTorch model take, as a profile for `chorale training`.

    Example: chorale record-training my_model:make -o my_model.json
    """
    torch = require_torch()
    document = record_profile(*load_model(model), model, torch, time.perf_counter)
    write_file(output, json.dumps(document, indent=2).encode() + b"\n")
    profile = load_profile(str(output))
    layers = profile.layers()
    seconds = sum(layer.forward_s + layer.backward_s for layer in layers)
    results.print(f"{len(layers)} layers, {profile.parameters} parameters, {seconds * 1e3:.4g} ms of computation")
