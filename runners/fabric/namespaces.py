"""Enters the Linux namespaces of a fabric, which has one network namespace per node."""

import ctypes
import os
from collections.abc import Sequence

_CLONE_NEWUSER, _CLONE_NEWNET = 0x10000000, 0x40000000


def enter_namespaces(files: Sequence[str]) -> None:
    """Move this thread to the namespaces in `files`: optionally a user namespace, then a network namespace.

    Entering a user namespace requires that this process has no other threads.
    """
    descriptors = [os.open(path, os.O_RDONLY | os.O_CLOEXEC) for path in files]
    setns = ctypes.CDLL(None, use_errno=True).setns
    for descriptor, kind in zip(descriptors, (_CLONE_NEWUSER, _CLONE_NEWNET)[-len(files) :], strict=True):
        if setns(descriptor, kind) != 0:
            error = ctypes.get_errno()
            raise OSError(error, f"the namespace of a node cannot be entered: {os.strerror(error)}")
        os.close(descriptor)
