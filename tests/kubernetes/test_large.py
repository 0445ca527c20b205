"""Many nodes and pods at once, through the real launcher as a process of its own on a real control
plane: everything comes to run and goes again, and the launcher's memory and work stay bounded.

SHIFTWORK_LARGE_NODES and SHIFTWORK_LARGE_PODS set the sizes; the full case is 1,000 and 10,000.

The launcher's memory, as stated: MEMORY_MIB_BASE for itself and KIB_PER_POD for each pod, which is
one record of the pod, its part of the run's row and of the last look. A full list comes page by
page, however long it is: PAGES_MIB while it is read.
"""

from __future__ import annotations

import os

import pytest

from benchmarks.pods_at_scale import measure

NODES = int(os.environ.get("SHIFTWORK_LARGE_NODES", "50"))
PODS = int(os.environ.get("SHIFTWORK_LARGE_PODS", "240"))
GANG = 8
CHURN = 10
MEMORY_MIB_BASE = 168
PAGES_MIB = 60
KIB_PER_POD = 12
# Processor time of the launcher's view, of one event and the look after it: whatever there is.
EVENT_US_MAX = 2_000
RELIST_CPU_MS_PER_OBJECT = 2.0

pytestmark = [pytest.mark.kubernetes, pytest.mark.server, pytest.mark.slow]


@pytest.mark.timeout(3_000)
async def test_many_nodes_and_pods_come_and_go_with_bounded_memory() -> None:
    found = await measure(NODES, PODS, GANG, CHURN)
    print(f"\n{found}")  # the statement itself, for runs with -s
    assert found.pods == PODS
    assert found.partial_gangs == 0
    allowed_mib = MEMORY_MIB_BASE + PODS * KIB_PER_POD / 1024
    assert found.peak_mib <= allowed_mib
    # One that begins on a full cluster reads all of it, page by page.
    assert found.takeover_mib <= allowed_mib + PAGES_MIB
    # A full view has every pod and node, and no event costs more because of how many there are.
    assert (found.probe["nodes"], found.probe["pods"]) == (NODES, PODS)
    assert found.probe["event_us"] <= EVENT_US_MAX
    objects = NODES + PODS + PODS / GANG
    assert found.probe["relist_cpu_s"] * 1000 <= RELIST_CPU_MS_PER_OBJECT * objects
