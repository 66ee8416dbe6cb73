"""Prices of schedules by simulation are those of `chorale simulate`."""

import pytest

from tests.command import chorale
from tests.unit.tuner.service.conftest import Service


def test_prices_are_those_of_the_command(service: Service, capsys):
    job = service.finished(
        service.post("/v1/syntheses", topology="torus:3x3", method="bfb", collective="allreduce").json()
    )
    asked = {"result": job["result"], "sizes_bytes": [4096, 2**20], "alpha_us": 1, "link_gbps": 100}
    priced = service.finished(service.post("/v1/prices", **asked).json())
    rows = service.client.get(f"/v1/results/{priced['result']}").json()["document"]["results"]
    arguments = ("--sizes", "4KiB,1MiB", "--alpha-us", 1, "--link-gbps", 100, "--json")
    expected = chorale(capsys, "simulate", "bfb", "torus:3x3", *arguments).document["results"]
    assert [row["time_us"] for row in rows] == [pytest.approx(row["time_us"]) for row in expected]


def test_links_without_a_rate_are_refused(service: Service):
    job = service.finished(service.post("/v1/syntheses", topology="ring:4", method="bfb").json())
    answer = service.post("/v1/prices", result=job["result"], sizes_bytes=[4096])
    assert answer.status_code == 422
    assert "link_gbps" in answer.json()["error"]["rule"]
