"""All single faults, by the name of their row."""

from collections.abc import Mapping

from tests.integration.faults import clocks, networks, processes, services, storage
from tests.integration.faults.rows import Fault

FAULTS: Mapping[str, Fault] = {
    **processes.FAULTS,
    **networks.FAULTS,
    **storage.FAULTS,
    **services.FAULTS,
    **clocks.FAULTS,
}
