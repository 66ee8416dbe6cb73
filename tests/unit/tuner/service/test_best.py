"""The best of the registry through the service: what a campaign registered, verified; what is not there is said."""

import pytest

from chorale.synth.schedule.codec import from_parquet
from chorale.synth.targets.lift import lift
from chorale.synth.verify.verify import verify
from chorale.tuner.files.home import Home
from chorale.tuner.files.topology_specs import load_topology
from tests.unit.tuner.launch.test_tuning import run
from tests.unit.tuner.service.conftest import Service, start_service
from tests.unit.tuner.service.fakes import FakeTaskBackend

ASKED = {"topology": "ring:4", "collective": "allreduce", "size_bytes": 5000}


@pytest.fixture
def service(home: Home):
    backend = FakeTaskBackend()
    with start_service(home.root, backend) as client:
        yield Service(client, backend)


def test_what_is_not_registered_is_said(service: Service):
    answer = service.client.get("/v1/best", params=ASKED)
    assert answer.status_code == 409
    assert "chorale tune" in answer.json()["error"]["way_out"]
    assert service.client.get("/v1/best", params={**ASKED, "topology": "file:/etc/hostname"}).status_code == 422


def test_what_a_campaign_registered_is_given_out(service: Service, home: Home):
    run(home)
    found = service.client.get("/v1/best", params=ASKED).json()
    assert found["exact"]
    assert found["manifest"]["collective"] == "allreduce"
    program = service.client.get("/v1/best/program", params=ASKED).content
    assert len(lift(program).ranks) == 4
    schedule = service.client.get("/v1/best/schedule", params=ASKED).content
    assert verify(from_parquet(schedule, load_topology)).schedule.topology.spec == "ring:4"
