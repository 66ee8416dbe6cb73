"""Registers the backend "chorale" when torch is imported; the backend's code is loaded when a job creates a group."""

import sys
from typing import Any

from chorale.synth.shadowing import shadow_of

BACKEND = "chorale"
_DEVICES = ["cpu", "cuda", "xpu"]


def register() -> None:
    """Register the backend with torch.distributed. If that fails, print the reason on stderr; never raise."""
    try:
        import torch.distributed as dist  # noqa: PLC0415 - torch is an extra, and this is called while it is imported

        if not dist.is_available():
            raise RuntimeError("this build of torch has no torch.distributed")
        if BACKEND not in dist.Backend.backend_list:
            before = dict(dist.Backend.default_device_backend_map)
            dist.Backend.register_backend(BACKEND, _create, extended_api=True, devices=list(_DEVICES))
            dist.Backend.default_device_backend_map = before  # not the default backend of any device
    except Exception as error:  # jobs that do not use this backend must not fail
        shadow = f"; {shadow}" if (shadow := shadow_of(error)) else ""
        sys.stderr.write(f"chorale: no backend for torch.distributed: {type(error).__name__}: {error}{shadow}\n")


def _create(options: Any, backend_options: Any) -> Any:
    try:
        from chorale.job.torch.creation import create_group  # noqa: PLC0415 - not before a job needs it
    except Exception as error:
        if shadow := shadow_of(error):
            raise ImportError(f"{type(error).__name__}: {error}; {shadow}") from error
        raise

    return create_group(options)
