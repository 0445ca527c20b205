"""Submit accepts a task if and only if the scheduler would start it on an empty cluster.

Both validate sizes and quotas, each from its own rows.
"""

from __future__ import annotations

from typing import Any

from hypothesis import example, given, settings
from hypothesis import strategies as st

from libs.contracts.messages import Priority, Quota, Refusal, TaskState, Unit
from services.scheduler.domain.model.rows import Limit
from services.submit.domain.facts import Defaults, Facts, Limits, Shape
from services.submit.domain.fill import fill_in
from services.submit.domain.validate import validate
from tests.kit.builders import a_node, a_task
from tests.kit.specs import TASK_ID, asked
from tests.services.scheduler.domain.domain_harness import DomainHarness

LEVELS = [Priority.UNSPECIFIED, Priority.NORMAL, Priority.LOW]


@settings(max_examples=150, deadline=None)
@given(
    sizes=st.lists(st.sampled_from([0, 2, 4, 8]), min_size=1, max_size=4),
    nodes=st.integers(1, 4),
    gpus=st.sampled_from([None, None, None, 0, 2, 4]),
    priority=st.sampled_from([Priority.NORMAL, Priority.AUTO]),
    quotas=st.lists(
        st.tuples(
            st.sampled_from(LEVELS),
            st.sampled_from([Unit.GPUS, Unit.NODES, Unit.GPUS_OR_NODES]),
            st.integers(0, 12),
            st.sampled_from(["cap", "grant", "unlimited"]),
        ),
        max_size=4,
        unique_by=lambda each: (each[0], each[3] == "cap"),
    ),
)
@example(
    sizes=[4, 8],
    nodes=1,
    gpus=None,
    priority=Priority.NORMAL,
    quotas=[(Priority.UNSPECIFIED, Unit.GPUS, 4, "cap")],
)
def test_what_submit_accepts_starts_on_an_empty_cluster(
    sizes: list[int],
    nodes: int,
    gpus: int | None,
    priority: Priority,
    quotas: list[tuple[Priority, Unit, int, str]],
) -> None:
    rows: list[dict[str, Any]] = [
        {
            "priority": level,
            "unit": unit,
            "limit": limit,
            "grant": kind != "cap",
            "unlimited": kind == "unlimited",
        }
        for level, unit, limit, kind in quotas
    ]
    spec = fill_in(
        asked(nodes=nodes, gpus_per_node=gpus, priority=priority),
        task_id=TASK_ID,
        defaults=Defaults(),
    )
    facts = Facts(
        shapes=tuple(Shape("default", size, 0.0, 0, sizes.count(size)) for size in {*sizes}),
        inventory_known=True,
        quotas=tuple(Quota(**row) for row in rows),
    )
    found = validate(spec, owner="ann", team="", facts=facts, limits=Limits())
    harness = DomainHarness(
        [a_node(f"n{place}", gpus=size) for place, size in enumerate(sizes)],
        limits=[Limit("", "", "", **row) for row in rows],
    )
    harness.submit(a_task("t", spec=spec, owner="ann", team=""))
    harness.rounds()
    starts = "t" in harness.tasks and harness.tasks["t"].state is TaskState.STARTING
    assert starts == (not isinstance(found, Refusal)), (found, harness.log)
