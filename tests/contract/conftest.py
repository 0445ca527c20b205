"""The servers and databases of these suites, as fixtures."""

from tests.contract.bus_harness import server
from tests.contract.store_harness import one_harness, one_source, one_store, role

__all__ = ["one_harness", "one_source", "one_store", "role", "server"]
