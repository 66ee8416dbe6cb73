"""Run a tuning table's programs as the backend CHORALE of ray.util.collective.

Call `register` in the driver and in every actor before groups are created. CHORALE_TABLE names the table.
"""

from functools import cache


@cache
def register() -> None:
    """Register the backend CHORALE with ray.util.collective in this process. Safe to call twice."""
    from ray.util.collective.backend_registry import register_collective_backend  # noqa: PLC0415

    from chorale.job.ray.collective_group import ChoraleRayGroup  # noqa: PLC0415 - Ray is imported where it is used

    register_collective_backend(ChoraleRayGroup.backend(), ChoraleRayGroup)
