"""The library of a group: what serves calls that no program serves."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as dist

from chorale.synth.errors import InvalidInput, Unavailable


@dataclass(frozen=True, slots=True)
class InnerGroup:
    """group: an ordinary process group of torch; backends: what it has for each type of device."""

    group: Any
    backends: dict[str, tuple[Any, Any]]


def inner_group(options: Any, name: str | None, purpose: str = "inner") -> InnerGroup:
    """Return the inner group of a group that is made with `options`.

    purpose: tells apart groups that are made with the same options
    name: of a backend of torch, by default gloo for the processor and the accelerator's own for an accelerator
    """
    names = _names(name)
    group = dist.ProcessGroup(options.store, options.group_rank, options.group_size)
    made = {inner: _backend(inner, options, purpose) for inner in dict.fromkeys(names.values())}
    backends = {device: made[inner] for device, inner in names.items()}
    register_backends(group, backends)
    return InnerGroup(group, backends)


def register_backends(group: Any, backends: dict[str, tuple[Any, Any]]) -> None:
    """Let `group` use `backends`."""
    for device, (kind, backend) in backends.items():
        group._register_backend(torch.device(device), kind, backend)
    group._set_default_backend(next(iter(backends.values()))[0])


def _names(name: str | None) -> dict[str, str]:
    names = {"cpu": "gloo"}
    accelerator = torch.accelerator.current_accelerator() if torch.accelerator.is_available() else None
    if accelerator is not None and accelerator.type in dist.Backend.default_device_backend_map:
        names[accelerator.type] = dist.Backend.default_device_backend_map[accelerator.type]
    if name is None:
        return names
    if name == "chorale" or name not in dist.Backend.backend_capability:
        known = ", ".join(sorted(set(dist.Backend.backend_capability) - {"chorale"}))
        raise InvalidInput("CHORALE_INNER must be a backend of torch.distributed", name, f"choose from {known}")
    return names | {device: name for device in dist.Backend.backend_capability[name] if device in names}


def _backend(name: str, options: Any, purpose: str) -> tuple[Any, Any]:
    kind = dist.Backend.backend_type_map[name]
    store = dist.PrefixStore(f"chorale-{purpose}-{name}", options.store)
    where = store, options.group_rank, options.group_size
    if name == "gloo":
        return kind, _numbered(dist.ProcessGroupGloo(*where, timeout=options.timeout))
    if name in ("nccl", "xccl"):
        return kind, _with_options(getattr(dist, f"ProcessGroup{name.upper()}"), where, options)
    plugin = dist.Backend._plugins.get(name.upper())
    if plugin is None or plugin.extended_api:
        raise Unavailable("the inner backend must be one that can be made here", name, "set CHORALE_INNER to another")
    return kind, plugin.creator_fn(*where, options.timeout)


def _with_options(backend: Any, where: tuple[Any, int, int], options: Any) -> Any:
    settings = backend.Options()
    settings._timeout = options.timeout
    settings.global_ranks_in_group = options.global_ranks_in_group
    settings.group_name = options.group_id
    return _numbered(backend(*where, settings))


def _numbered(backend: Any) -> Any:
    backend._set_sequence_number_for_group()
    return backend
