"""Reading dumps: what is taken, what is passed over, what is refused."""

from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st

from chorale.synth.bounds.lower_bound import lower_bound
from chorale.synth.collective import ALLGATHER
from chorale.synth.errors import InvalidInput
from chorale.synth.topology.formats.files import from_bytes
from chorale.synth.topology.formats.files import machine_of as read
from chorale.synth.topology.formats.machine_network import BoxNetwork, Machine, boxes_topology
from tests.dumps import cpu, gpu, nets, nic, nvswitch_machine, pairs_machine, pci, system, xgmi_machine


def machine_of(content: bytes) -> Machine:
    machine = read(content, "file:dump.xml")
    assert machine is not None
    return machine


def test_gpus_are_ranked_and_numbered_nics_kept():
    content = system(
        cpu(0, gpu("0000:01:00.0", 7), nets((3, 10_000)), gpu("0000:02:00.0", 2)),
        cpu(1, nets((3, 10_000)), nets((1, -1)), gpu("0000:03:00.0", 5)),
    )
    machine = machine_of(content)
    assert [gpu.bus for gpu in machine.gpus] == ["0000:02:00.0", "0000:03:00.0", "0000:01:00.0"]
    assert [(nic.number, nic.speed and nic.speed.physical) for nic in machine.nics] == [
        ("1", Fraction(5, 4)),
        ("3", Fraction(5, 4)),
    ]
    assert not machine.positions_only


def test_ports_share_the_pci_link_of_their_nic():
    machine = machine_of(system(cpu(0, gpu("0000:01:00.0", 0), nic("0000:02:00.0", (0, 200_000), (1, 200_000)))))
    assert len({nic.device for nic in machine.nics}) == 1
    two = boxes_topology(machine, BoxNetwork(2), "file:dump.xml").expected
    assert two is not None
    assert lower_bound(two, ALLGATHER).value == Fraction(1, 2) / 24


def test_what_says_nothing_about_links_is_passed_over():
    unused = '<gpu dev="1" sm="80" gdr="1"/>'
    fused = '<nic><net name="a" speed="1000"/><net name="b" dev="0" net="0"/><gin name="c" dev="1"/></nic>'
    nvswitch = pci("0000:c1:00.0", kind="0x068000")
    content = system(
        cpu(0, gpu("0000:01:00.0", 0), pci("0000:02:00.0", unused, kind="0x030200"), nvswitch, fused, "<unknown/>")
    )
    machine = machine_of(content)
    assert len(machine.gpus) == 1
    assert machine.nics == ()
    assert [host.name for host in machine.hosts] == ["cpu:0"]


def test_unknown_speeds_count_as_eight_gigatransfers_on_sixteen_lanes():
    bare = '<pci busid="0000:01:00.0" class="0x030200"><gpu sm="80" rank="0"/></pci>'
    pci = machine_of(system(cpu(0, bare))).gpus[0].pci
    assert (pci.expected, pci.physical, pci.basis.source) == (12, Fraction("31.5"), "guess")


def one(text: str) -> bytes:
    return system(cpu(0, text))


@pytest.mark.parametrize(
    ("content", "error"),
    [
        (b"<system/>", "the topology dump has no GPU with a rank; dump on a machine with GPUs"),
        (system(cpu(0, gpu("0000:01:00.0", 0), gpu("0000:02:00.0", 0))),
         "ranks of GPUs in a topology dump must be unique, got 0; correct the file"),
        (system(cpu(0, gpu("0000:01:00.0", 0), gpu("0000:01:00.0", 1))),
         "bus ids in a topology dump must be unique, got 0000:01:00.0; correct the file"),
        (one(gpu("here", 0)),
         "busid of <pci> in a topology dump must be a bus id, got 'here'; write it as 0000:3b:00.0"),
        (one(gpu("0000:01:00.0", 0).replace('rank="0"', 'rank="first"')),
         "rank of <gpu> in a topology dump must be a whole number from 0 to 2147483647, got 'first'; correct the file"),
        (one(gpu("0000:01:00.0", 0, '<nvlink target="0000:02:00.0" tclass="0x030200"/>')),
         "count of <nvlink> in a topology dump is missing in an element with target, tclass; correct the file"),
        (one(gpu("0000:01:00.0", 0, '<nvlink target="0000:02:00.0" tclass="0x030200" count="99999999999999"/>')),
         "count of <nvlink> in a topology dump must be a whole number from 1 to 1024, got '99999999999999'; "
         "correct the file"),
        (one(gpu("0000:01:00.0", 0, '<xgmi target="0000:02:00.0" count="0"/>')),
         "count of <xgmi> in a topology dump must be a whole number from 1 to 1024, got '0'; correct the file"),
        (one(gpu("0000:01:00.0", 0, '<nvlink target="x" tclass="0x030200" count="1"/>')),
         "target of <nvlink> in a topology dump must be a bus id, got 'x'; write it as 0000:3b:00.0"),
        (one(gpu("0000:01:00.0", 0, width="-1")),
         "link_width of <pci> in a topology dump must be a whole number from 0 to 2147483647, got '-1'; "
         "correct the file"),
        (one(gpu("0000:01:00.0", 0, width="1000")),
         "link_width must be a number of lanes from 1 to 32, or 0, got 1000; correct the file"),
        (one(pci("0000:01:00.0", speed="17 GT/s")),
         "link_speed must be a speed of PCI Express, got '17 GT/s'; choose from 2.5, 5, 8, 16, 32, 64 GT/s"),
        (one(nets((0, 10**12))),
         "speed of <net> in a topology dump must be a whole number from -1000000000 to 1000000000, "
         "got '1000000000000'; correct the file"),
        (b"<system>" + b"<cpu/>" * 9000 + b"</system>",
         "a topology dump must have at most 8192 elements, got 9001; dump one machine"),
        (b'<!DOCTYPE system [<!ENTITY x "y">]><system>&x;</system>',
         "this XML file has a DOCTYPE or entities: DTDForbidden; remove the DOCTYPE"),
        (b"<system><cpu>", "the topology dump is not complete: an XML element without its end; "
         "save all of the file, such as that of NCCL_TOPO_DUMP_FILE"),
    ],
)  # fmt: skip
def test_errors(content, error):
    with pytest.raises(InvalidInput) as caught:
        machine_of(content)
    assert str(caught.value) == error


@given(st.data())
def test_a_spoilt_dump_is_read_or_refused_in_one_line(data):
    content = bytearray(data.draw(st.sampled_from([nvswitch_machine(), pairs_machine(), xgmi_machine()])))
    for _ in range(data.draw(st.integers(1, 4))):
        place = data.draw(st.integers(0, len(content) - 1))
        content[place : place + data.draw(st.integers(0, 3))] = data.draw(
            st.sampled_from([b"", b"0", b"9", b"-", b"x"])
        )
    spoilt = bytes(content)
    assert "\n" not in refusal(spoilt)


def refusal(content: bytes) -> str:
    """Return the message with which `content` is refused, "" if it is read."""
    try:
        from_bytes(content, "file:dump.xml")
    except InvalidInput as error:
        return str(error)
    return ""
