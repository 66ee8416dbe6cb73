"""Moves the process of a rank to the network of its node. It imports little: every rank's process does it first."""

from __future__ import annotations

import ctypes
import os

_CLONE_NEWUSER, _CLONE_NEWNET = 0x10000000, 0x40000000


def enter_namespaces(files: tuple[str, ...]) -> None:
    """Move this process, which must have one thread, to namespaces: the last is a network's, one before it a user's."""
    kinds = (_CLONE_NEWUSER, _CLONE_NEWNET)[-len(files) :]
    descriptors = [os.open(path, os.O_RDONLY | os.O_CLOEXEC) for path in files]
    setns = ctypes.CDLL(None, use_errno=True).setns
    for descriptor, kind in zip(descriptors, kinds, strict=True):
        if setns(descriptor, kind) != 0:
            error = ctypes.get_errno()
            raise OSError(error, f"the namespace of a rank cannot be entered: {os.strerror(error)}")
        os.close(descriptor)
