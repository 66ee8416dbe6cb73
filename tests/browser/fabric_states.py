"""What a watch writes about a cube of eight ranks, healthy and with a cable that was cut."""

from typing import Any

from chorale.synth.topology.spec import parse_topology

_RATE = 100e6
_CUT = ("0>1", "1>0")


def cube_state(time_s: float, is_cut: bool) -> dict[str, Any]:
    """Return the document of `state.json` at `time_s`; the cable between ranks 0 and 1 was cut five seconds before."""
    links = [f"{link.src}>{link.dst}" for link in parse_topology("hypercube:3").links]
    state = "link 0>1 is dead, link 1>0 is dead" if is_cut else "all links are healthy"
    spec = "without(hypercube:3;link=0>1;link=1>0)" if is_cut else "hypercube:3"
    costs = {"allreduce": {"achieved": "1" if is_cut else "7/12", "lower_bound": "1" if is_cut else "7/12", "gap": "0"}}
    facts = {"why": state, "spec": spec, "costs": costs, "seconds": 0.9}
    digest = "7f3a" * 16 if is_cut else "c01d" * 16
    return {
        "format": "chorale-watch/1",
        "name": "cube",
        "topology": "hypercube:3",
        "time_s": time_s,
        "state": state,
        "is_held": False,
        "table": {"digest": digest, "time_s": time_s - 4, **facts},
        "links": [_link(link, time_s, is_cut and link in _CUT) for link in links],
        "events": _events(time_s, digest, facts) if is_cut else [],
    }


def _link(link: str, time_s: float, is_dead: bool) -> dict[str, Any]:
    return {
        "link": link,
        "state": "dead" if is_dead else "healthy",
        "since_s": time_s - (5 if is_dead else 600),
        "declared_bits_per_s": _RATE,
        "in_force_bits_per_s": 0.0 if is_dead else _RATE,
        "carried_bits_per_s": 0.0,
    }


def _events(time_s: float, digest: str, facts: dict[str, Any]) -> list[dict[str, Any]]:
    changes = [
        {"time_s": time_s - 5, "event": "state", "link": link, "from": "healthy", "to": "dead", "rate": None}
        for link in _CUT
    ]
    plan = {"time_s": time_s - 4.7, "event": "replan", "spec": facts["spec"], "state": facts["why"], "ahead": True}
    rows = [{"collective": "allreduce", "size_bytes": 1048576, "ratio": 0.62, "interval": [0.6, 0.64], "slower": False}]
    return [
        *changes,
        plan | {"seconds": 0.02, "costs": facts["costs"]},
        {"time_s": time_s - 4.1, "event": "canary", "rows": rows, "failures": []},
        {"time_s": time_s - 4, "event": "publish", "table": digest, **facts},
    ]
