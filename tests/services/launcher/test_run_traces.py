"""The span of a run, and how a task's own program gets it."""

from __future__ import annotations

from dataclasses import dataclass, field

from libs.service import observability
from libs.store.task_traces import TaskTrace
from services.launcher.domain.model import RunState
from services.launcher.run_orders import build_order
from services.launcher.run_traces import RunTraces, run_traceparent
from services.launcher.runtimes.port import RunOrder
from tests.kit.launcher_builders import a_run, a_spec, an_assignment, run_id
from tests.kit.log_lines import log_lines
from tests.kit.spans import Spans, ids, parent_of
from tests.kit.virtual_time import virtually
from tests.services.launcher.launcher_harness import (
    SITE,
    CrashError,
    LauncherHarness,
    running_cluster,
)
from tests.services.launcher.test_run_orders import hosts_of

TRACE, SPAN = "4bf92f3577b34da6a3ce929d0e0e4736", "00f067aa0ba902b7"
GOOD = f"00-{TRACE}-{SPAN}-01"


def test_a_program_gets_the_span_of_its_run_unless_the_task_names_another() -> None:
    traceparent = run_traceparent(run_id(), GOOD)
    run = a_run(RunState.ASSIGNED)
    (rank,) = build_order(run, hosts_of(run), SITE, traceparent=traceparent).ranks
    assert rank.env["TRACEPARENT"] == traceparent
    assert traceparent.split("-")[1] == TRACE
    own = a_run(RunState.ASSIGNED, spec=a_spec(env={"TRACEPARENT": "mine"}))
    (rank,) = build_order(own, hosts_of(own), SITE, traceparent=traceparent).ranks
    assert rank.env["TRACEPARENT"] == "mine"
    (rank,) = build_order(run, hosts_of(run), SITE).ranks
    assert "TRACEPARENT" not in rank.env


@dataclass
class TracedHarness(LauncherHarness):
    """A launcher that traces, whose first launch takes effect before the launcher dies."""

    spans: Spans = field(default_factory=Spans)
    ordered: list[str] = field(default_factory=list[str])

    async def start(self) -> None:
        await super().start()
        self.launcher.traces = RunTraces(self.spans.tracing)
        launch = self.launcher.runtime.launch

        async def noted(order: RunOrder) -> None:
            self.ordered.append(order.ranks[0].env["TRACEPARENT"])
            observability.log("launcher").info("launches")
            await launch(order)
            if len(self.ordered) == 1:
                raise CrashError

        setattr(self.launcher.runtime, "launch", noted)  # noqa: B010 - an instance's own


def test_a_run_has_one_span_whatever_launches_it_again() -> None:
    harness = TracedHarness()

    async def main() -> None:
        async with running_cluster(harness):
            async with harness.store.transaction(epoch=harness.epoch) as tx:
                tx.put(TaskTrace("task", GOOD, GOOD, tx.now))
            await harness.handle(an_assignment())
            await harness.until_exited()

    with log_lines() as lines:
        virtually(main())
    (first, *_) = (each for each in lines() if each["event"] == "launches")
    assert (first["task"], first["attempt"], first["trace_id"]) == ("task", 1, TRACE)
    ordered, spans = harness.ordered, harness.spans
    assert set(ordered) == {run_traceparent(run_id(), GOOD)}
    found = spans.named()
    run = found["run 1"]
    assert f"00-{'-'.join(ids(run))}-01" == ordered[0]
    assert parent_of(run) == (TRACE, SPAN)
    assert parent_of(found["launch"]) == ids(run)
    assert run.start_time is not None
    assert run.end_time is not None
    assert run.end_time > run.start_time
    attributes = dict(run.attributes or {})
    assert attributes["shiftwork.task"] == "task"
    assert attributes["shiftwork.attempt"] == 1
