"""What every pattern promises: a schedule that verifies, and traffic that is its sum."""

from chorale.synth.methods.grid.pattern import CollectivePattern
from chorale.synth.schedule.traffic import Traffic, traffic_of
from chorale.synth.verify.verified import VerifiedSchedule
from chorale.synth.verify.verify import verify


def verified_with_traffic(pattern: CollectivePattern) -> VerifiedSchedule:
    """Return the verified schedule of `pattern` after a look at its traffic."""
    verified = verify(pattern.schedule())
    assert same_traffic(pattern.traffic(), traffic_of(verified.schedule)), pattern.topology.spec
    return verified


def same_traffic(first: Traffic, second: Traffic) -> bool:
    """Whether two traffics send the same amounts over the same routes in all steps."""
    steps = zip(first.steps, second.steps, strict=True)
    return (
        first.denominator == second.denominator
        and first.routes.link_ids.tolist() == second.routes.link_ids.tolist()
        and first.routes.offsets.tolist() == second.routes.offsets.tolist()
        and all(a.route.tolist() == b.route.tolist() and a.amount.tolist() == b.amount.tolist() for a, b in steps)
    )
