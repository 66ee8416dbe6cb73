"""Design, verify and tune collective communication for a given network.

Notebooks and jobs only need the functions below. Each function is imported on first use.

>>> import chorale as ch
>>> schedule = ch.synthesize("torus:4x4", "allreduce", method="bfb")
>>> schedule.schedule.method, str(schedule.cost.bandwidth_factor)
('bfb', '15/8')

These functions build on `chorale.synth`, `chorale.runners`, `chorale.tuner` and `chorale.experiments`, which each
export a short list of stable names.
"""

from typing import TYPE_CHECKING

from chorale.synth.lazy_modules import lazy_names

if TYPE_CHECKING:
    from chorale.campaigns import best as best, tune as tune
    from chorale.design import (
        find as find,
        judge as judge,
        lower as lower,
        run as run,
        simulate as simulate,
        synthesize as synthesize,
        topology as topology,
        verify as verify,
    )
    from chorale.job.settings import load_table as load_table
    from chorale.synth.errors import ChoraleError as ChoraleError
    from chorale.traffic import Replanner as Replanner, plan_alltoall as plan_alltoall, plan_dispatch as plan_dispatch
    from chorale.version import __version__ as __version__

_HOMES = {
    "chorale.campaigns": "best tune",
    "chorale.design": "find judge lower run simulate synthesize topology verify",
    "chorale.job.settings": "load_table",
    "chorale.synth.errors": "ChoraleError",
    "chorale.traffic": "Replanner plan_alltoall plan_dispatch",
    "chorale.version": "__version__",
}

__all__ = [name for names in _HOMES.values() for name in names.split()]  # imported on first use
__getattr__ = lazy_names(__name__, _HOMES)


def __dir__() -> list[str]:
    return sorted(__all__)
