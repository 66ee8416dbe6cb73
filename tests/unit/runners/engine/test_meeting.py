"""How engines find one another."""

import json
import os
import re
import subprocess
import sys
from contextlib import closing

import pytest

from chorale.runners.engine.library import Devices, Engine, addresses_for, listen
from chorale.synth.errors import InvalidInput


def test_ranks_that_share_memory_use_it_and_others_tcp() -> None:
    engines = [Engine(rank, 2) for rank in range(2)]
    said = [listen(engine, Devices("lo")) for engine in engines]
    assert said[0][0] == said[1][0]
    assert all(tcp.startswith("tcp:127.0.0.1:") for _, _, tcp in said)
    assert [address.partition(":")[0] for address in addresses_for(said[0], said)] == ["shm", "shm"]
    of_all = [said[0], ["there", *said[1][1:]]]
    assert addresses_for(of_all[0], of_all) == [said[0][1], said[1][2]]
    for engine in engines:
        engine.close()


def test_a_device_that_is_not_there_is_refused_with_those_that_are() -> None:
    with closing(Engine(0, 2)) as engine, pytest.raises(InvalidInput, match=r"matches nothing0; choose from .*lo"):
        engine.listen_devices(Devices("nothing0"))


DEVICES = """
ip link set lo up
for device in eno1 ib0 ib1 docker0; do ip link add $device type veth peer name far-$device; ip link set $device up; done
ip addr add 10.0.1.1/24 dev eno1; ip addr add 10.0.2.1/24 dev ib0; ip addr add 172.17.0.1/16 dev docker0
ip addr add fd00:3::1/64 dev ib1 nodad; ip route add 10.9.0.0/16 via 10.0.2.7
exec "$@"
"""
CHOICES = (
    ({}, "", "", "docker0 comes last", "eno1|ib0|ib1|docker0"),
    ({}, "", "10.9.1.1", "a host that a device routes to", "ib0"),
    ({}, "", "10.0.1.1", "this host", "eno1"),
    ({}, "", "nobody.invalid", "a name that nobody knows", "eno1|ib0|ib1|docker0"),
    ({"A": "ib0"}, "", "10.0.1.9", "a variable goes before a route", "ib0"),
    ({"A": "^eno1,docker0"}, "", "10.0.1.9", "all but these", "ib0|ib1"),
    ({"A": "ib"}, "", "", "how names begin", "ib0,ib1"),
    ({"A": "=ib"}, "", "", "no device is called just so", "eno1|ib0|ib1|docker0"),
    ({"A": "nothing0", "B_exclude": "10.0.1.0/24,docker0,fd00:3::/64"}, "", "", "networks", "ib0"),
    ({"A": "eno1"}, "ib1, ib0", "", "several links in order", "ib1,ib0"),
    ({}, "10.0.2.1", "", "an address", "ib0"),
    ({}, "^ib", "10.9.1.1", "a route over what is excluded", "eno1|docker0"),
)
ASK = """
import json, os, sys
from chorale.runners.engine.library import Devices, Engine
for variables, chosen, toward, *_ in json.load(sys.stdin):
    os.environ.update(variables)
    print(Engine(0, 2).listen_devices(Devices(chosen, ("A", "B_exclude"), toward)))
    for name in variables:
        del os.environ[name]
"""


@pytest.mark.skipif(os.getuid() != 0, reason="THE CHOICE OF NETWORK DEVICES IS NOT TESTED: run as root")
def test_devices_are_chosen_by_names_networks_and_routes() -> None:
    command = ["unshare", "--net", "sh", "-ec", DEVICES, "sh", sys.executable, "-c", ASK]
    done = subprocess.run(command, input=json.dumps(CHOICES), capture_output=True, text=True, check=True, timeout=60)
    addresses = {"eno1": "10.0.1.1", "ib0": "10.0.2.1", "ib1": "fd00:3::1", "docker0": "172.17.0.1"}
    for line, (*_, what, wanted) in zip(done.stdout.splitlines(), CHOICES, strict=True):
        assert re.sub(r"tcp:\S+?@", "", line) == wanted, what
        for device in re.split("[,|]", wanted):
            assert f"tcp:{addresses[device]}:" in line, what
