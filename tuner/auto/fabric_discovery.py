"""Find a machine's fabric with the installed tools; if no tool is installed, emulate a network on the CPU cores."""

import os
import shutil
import subprocess
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

from chorale.synth import ChoraleError, Topology
from chorale.synth.processors import core_count
from chorale.synth.topology.formats.files import from_bytes
from chorale.synth.topology.formats.gpu_matrices import read_gpu_matrix
from chorale.synth.topology.formats.machine_network import BoxNetwork, boxes_topology
from chorale.tuner.files.machine_files import MachineOptions, read_network
from chorale.tuner.files.topology_specs import load_topology

EMULATED = "hypercube:3"
"""Eight ranks with three links each: small enough for two cores, with enough links that one ring is not optimal."""

WRITTEN = "machine.json"
_PATIENCE_S = 20.0

_GPU_FAMILIES = ("a100", "h100", "h200", "b200", "nvl72", "mi250", "mi250half", "mi300x", "mi355x")

Reader = Callable[[str, str], Topology]


@dataclass(frozen=True, slots=True)
class DiscoveredFabric:
    """A network and its origin.

    source: where the network comes from
    has_accelerators: whether its ranks are GPUs
    is_emulated: whether its ranks are processes on this machine, connected by links with limited rates
    skipped: sources that were tried without success, and the reasons
    writer: command that writes the network to `WRITTEN`; None if a spec describes it
    """

    topology: Topology
    source: str
    has_accelerators: bool = False
    is_emulated: bool = False
    skipped: tuple[str, ...] = ()
    writer: str | None = None


def discover(spec: str | None, dump: str | None, model: str | None = None) -> DiscoveredFabric:
    """Return the fabric that `spec` or the file `dump` describes; if both are None, discover this node or cluster.

    `model` names the GPUs if the file contains only the matrix of their connections.

    Raises InvalidInput if the spec or the dump is not valid.
    """
    if spec is not None:
        return DiscoveredFabric(load_topology(spec), f"the spec {spec}", spec.partition(":")[0] in _GPU_FAMILIES)
    if dump is not None:
        network = read_network(dump, MachineOptions(model=model)).topology
        writer = None if model is None else f"chorale topology import {dump} --model {model} -o {WRITTEN}"
        return DiscoveredFabric(network, f"the file {dump}", has_accelerators=True, writer=writer)
    if (named := os.environ.get("NCCL_TOPO_DUMP_FILE")) and Path(named).is_file():
        return DiscoveredFabric(load_topology(f"file:{named}"), f"NCCL's dump {named}", has_accelerators=True)
    skipped: list[str] = []
    for command, reader, is_gpu in _tools():
        try:
            output = _output(command)
            network, writer = reader(output, command[0]), f"chorale auto -o {WRITTEN}"
            return DiscoveredFabric(network, " ".join(command), is_gpu, skipped=tuple(skipped), writer=writer)
        except ChoraleError as error:
            skipped.append(f"{command[0]}: {error.value}")
        except (OSError, subprocess.SubprocessError) as error:
            skipped.append(f"{command[0]}: {error}")
    cores = core_count()
    words = f"no accelerators found: an emulated {EMULATED} on {cores} cores of this machine"
    return DiscoveredFabric(load_topology(EMULATED), words, is_emulated=True, skipped=tuple(skipped))


def _tools() -> Iterator[tuple[list[str], Reader, bool]]:
    """Yield each installed tool's command, the function that reads its output, and whether it describes GPUs."""
    if shutil.which("nvidia-smi"):  # its GPU list has their names, which determine the link rates
        yield (
            ["nvidia-smi", "topo", "-m"],
            lambda text, spec: _of_matrix(f"{_output(['nvidia-smi', '-L'])}\n{text}", spec),
            True,
        )
    if shutil.which("rocm-smi"):
        yield ["rocm-smi", "--showtopo", "--showproductname"], _of_matrix, True
    if shutil.which("ibnetdiscover"):
        yield ["ibnetdiscover"], lambda text, spec: from_bytes(text.encode(), spec), False


def _of_matrix(text: str, spec: str) -> Topology:
    return boxes_topology(read_gpu_matrix(text), BoxNetwork(), spec)


def _output(command: list[str]) -> str:
    done = subprocess.run(command, capture_output=True, text=True, timeout=_PATIENCE_S, check=True)  # noqa: S603 - a fixed command
    return done.stdout
