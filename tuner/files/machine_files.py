"""Read networks from files that describe machines, fabrics or clusters; options add information that a file lacks."""

from dataclasses import dataclass, field
from fractions import Fraction

from chorale.job.files import read_file
from chorale.synth import InvalidInput, Topology
from chorale.synth.document_limits import MAX_XML_BYTES
from chorale.synth.identity import parse_rational
from chorale.synth.topology.formats.files import fabric_text, from_bytes, machine_of
from chorale.synth.topology.formats.ibnetdiscover import expanded_names, read_fabric
from chorale.synth.topology.formats.machine_network import BoxNetwork, boxes_topology


@dataclass(frozen=True, slots=True)
class MachineOptions:
    """Options for information about a machine that its file does not contain.

    Args:
        model: Model of the GPUs, such as H100, if the file is a GPU matrix like that of nvidia-smi [as in the file].
        boxes: Number of copies of the machine to connect, or of hosts of the fabric to use.
        nic_gbps: Gbit/s of every NIC [as in the file].
        rails: Connect NIC i of all boxes by switch i, instead of all NICs by one switch.
        nvlink_boxes: Boxes that share one NVSwitch [trays of NVL72: all up to 72 GPUs].
        nodes: Hosts of a fabric to use, such as gpu[01-16] [all].
        machine: Dump or GPU matrix of one host of the fabric; GPUs instead of hosts become ranks.
    """

    model: str | None = None
    boxes: int | None = None
    nic_gbps: str | None = None
    rails: bool = False
    nvlink_boxes: int | None = None
    nodes: str | None = None
    machine: str | None = None

    def __post_init__(self) -> None:
        for name in ("boxes", "nvlink_boxes"):
            if (getattr(self, name) or 1) < 1 or getattr(self, name) == 0:
                rule = f"--{name.replace('_', '-')} must be at least 1"
                raise InvalidInput(rule, getattr(self, name), "leave it out for one box")

    @property
    def nic(self) -> Fraction | None:
        """Return the bandwidth of every NIC in GB/s, or None if it is not given."""
        if self.nic_gbps is None:
            return None
        bandwidth = parse_rational(self.nic_gbps, "--nic-gbps")
        if bandwidth <= 0:
            raise InvalidInput("--nic-gbps must be positive", self.nic_gbps, "give the Gbit/s of one NIC")
        return bandwidth / 8

    def refuse(self, file: str, why: str, *names: str) -> None:
        """Raise InvalidInput if the user gave one of the options `names`, which do not apply to `file`."""
        given = [f"--{name.replace('_', '-')}" for name in names if getattr(self, name)]
        if given:
            raise InvalidInput(
                f"{' and '.join(given)} {why}", file, "leave it out" if len(given) == 1 else "leave them out"
            )


@dataclass(frozen=True, slots=True)
class ReadNetwork:
    """A network that was read from a file, and `notes` about it to show to the user."""

    topology: Topology
    notes: tuple[str, ...] = field(default=())


_FABRIC = "an output of ibnetdiscover"
_ONLY_PLACES = (
    "This file lists PCI devices but does not describe GPUs: links other than PCI are missing. "
    "For the whole machine, run NCCL or RCCL on it with NCCL_TOPO_DUMP_FILE set."
)


def read_network(file: str, options: MachineOptions) -> ReadNetwork:
    """Return the network in a file. Raises InvalidInput for options that do not apply to the file's format."""
    spec, content = f"file:{file}", read_file(file, MAX_XML_BYTES)
    if not content.strip():
        raise InvalidInput("the file {} is empty", file, "run the command that writes it again and read its errors")
    machine = machine_of(content, spec, options.model)
    if machine is not None:
        options.refuse(file, f"can only be used with a fabric: {_FABRIC}", "nodes", "machine")
        network = BoxNetwork(options.boxes or 1, options.nic, options.rails, options.nvlink_boxes)
        return ReadNetwork(boxes_topology(machine, network, spec), (_ONLY_PLACES,) if machine.positions_only else ())
    if (text := fabric_text(content)) is not None:
        options.refuse(file, "cannot be used with a fabric of InfiniBand", "rails", "nvlink_boxes")
        return _of_fabric(text, options, spec)
    of_machines = "boxes", "nic_gbps", "rails", "nvlink_boxes", "model"
    options.refuse(file, "can only be used with a topology dump or a matrix of GPUs", *of_machines)
    options.refuse(file, f"can only be used with {_FABRIC}", "nodes", "machine")
    return ReadNetwork(from_bytes(content, spec))


def _of_fabric(text: str, options: MachineOptions, spec: str) -> ReadNetwork:
    fabric, names = read_fabric(text), tuple(expanded_names(options.nodes or ""))
    if options.machine is None:
        options.refuse(spec, "can only be used with --machine", "model", "nic_gbps")
        return ReadNetwork(fabric.topology(spec, names, options.boxes))
    machine = machine_of(read_file(options.machine, MAX_XML_BYTES), f"file:{options.machine}", options.model)
    if machine is None:
        way_out = "run NCCL or RCCL on a node with NCCL_TOPO_DUMP_FILE set"
        raise InvalidInput("--machine must be a dump of NCCL or RCCL, or a matrix of GPUs", options.machine, way_out)
    hosts = fabric.chosen(names, options.boxes)
    note = f"ranks are in the order of hosts {','.join(hosts)}"
    return ReadNetwork(fabric.cluster(machine, hosts, options.nic, spec), (note,))
