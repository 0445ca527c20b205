"""One trace from the HTTP call to the process and its acknowledgement, over the real parts."""

from __future__ import annotations

import itertools
import sys
from pathlib import Path
from typing import Any

import pytest

from services.allinone.composition import WIRINGS
from tests.chaos.chaos import SETTINGS
from tests.kit.collector import Collector, ReceivedSpan, collector
from tests.kit.platform import Platform, running_platform, until

pytestmark = [pytest.mark.server, pytest.mark.timeout(120), pytest.mark.slow]
TRACE, SPAN = "4bf92f3577b34da6a3ce929d0e0e4736", "00f067aa0ba902b7"
# Writes down which span it got, and saves.
PROGRAM = """
import os, pathlib, sys, shiftwork
pathlib.Path(sys.argv[1]).write_text(os.environ.get("TRACEPARENT", ""))
shiftwork.checkpoint_saved(1, "file:///checkpoint")
"""
# From the call to the process, and from its acknowledgement to the scheduler: each below the one
# before.
WAY = (
    ("gateway", "POST /tasks"),
    ("submit", "CreateTask"),
    ("submit", "publish TaskSubmitted"),
    ("scheduler", "handle TaskSubmitted"),
    ("scheduler", "emit RunAssigned"),
    ("scheduler", "publish RunAssigned"),
    ("launcher", "handle RunAssigned"),
    ("launcher", "run 1"),
    ("gateway", "POST /run/checkpoints"),
    ("launcher", "AckCheckpoint"),
    ("launcher", "publish CheckpointSaved"),
    ("scheduler", "handle CheckpointSaved"),
)
# What hangs below the launcher's part beside that.
BESIDE = (("launcher", "launch"), ("launcher", "emit RunStarted"), ("launcher", "emit RunExited"))


def settings(url: str) -> dict[str, str]:
    endpoints = [f"SHIFTWORK_{wiring.name.upper()}_OTLP_ENDPOINT" for wiring in WIRINGS]
    # The standard's variable for how long spans are gathered, in milliseconds.
    return {**SETTINGS, **dict.fromkeys(endpoints, url), "OTEL_BSP_SCHEDULE_DELAY": "200"}


async def submit(
    platform: Platform, name: str, traceparent: str = "", **fields: Any
) -> tuple[str, str]:
    """A task that writes its span down: its id, and the trace that the answer names."""
    command = [sys.executable, "-c", PROGRAM, str(platform.folder / name)]
    answer = await platform.client.post(
        "/v1/tasks",
        json={"name": name, "gpus_per_node": 1, "command": command, **fields},
        headers={"traceparent": traceparent} if traceparent else {},
    )
    assert answer.status_code == 201, answer.text
    return str(answer.json()["id"]), answer.headers["traceparent"].split("-")[1]


def named(spans: list[ReceivedSpan]) -> dict[tuple[str, str], ReceivedSpan]:
    return {(each.service, each.name): each for each in spans}


async def whole(found: Collector, trace_id: str) -> dict[tuple[str, str], ReceivedSpan]:
    """The trace, once all of it has arrived."""

    async def arrived() -> bool:
        return {*WAY, *BESIDE} <= named(found.of(trace_id)).keys()

    try:
        await until(arrived, 20.0)
    except AssertionError:
        print(sorted(named(found.of(trace_id))))
        raise
    return named(found.of(trace_id))


def check(spans: dict[tuple[str, str], ReceivedSpan], task_id: str, written: Path) -> None:
    for above, below in itertools.pairwise(WAY):
        assert spans[below].parent_id == spans[above].span_id, below
    run = spans["launcher", "run 1"]
    assert spans["launcher", "launch"].parent_id == run.span_id
    for each in BESIDE[1:]:
        assert spans[each].parent_id == spans["launcher", "handle RunAssigned"].span_id
    assert written.read_text().startswith(f"00-{run.trace_id}-{run.span_id}-")
    assert not [each for each in spans.values() if each.failed]
    of_task = [each for each in spans.values() if "shiftwork.task" in each.attributes]
    assert {each.attributes["shiftwork.task"] for each in of_task} == {task_id}
    assert run.attributes["shiftwork.attempt"] == "1"


async def test_one_trace_leads_from_the_call_to_the_process_and_its_acknowledgement() -> None:
    # Whatever strangers send, their tasks run, in traces of their own.
    sent = {"traced": f"00-{TRACE}-{SPAN}-01", "garbage": "nonsense", "long": "0" * 20_000}
    with collector() as found:
        async with running_platform(slots=4, settings=settings(found.url)) as platform:
            made = {
                name: await submit(platform, name, text, env={"WORD": "secret-in-env"})
                for name, text in sent.items()
            }
            assert made["traced"][1] == TRACE
            for name, (task_id, trace_id) in made.items():
                await platform.until_state(task_id, "succeeded")
                spans = await whole(found, trace_id)
                check(spans, task_id, platform.folder / name)
                assert spans[WAY[0]].parent_id == (SPAN if name == "traced" else "")

            # A service that is killed after its answer publishes in the same trace when it is back.
            task_id, trace_id = await submit(platform, "killed")
            assert platform.dev.processes.kill("submit")
            assert platform.dev.processes.kill("scheduler")
            await platform.until_state(task_id, "succeeded", 30.0)

            async def ended() -> bool:
                return ("launcher", "run 1") in named(found.of(trace_id))

            await until(ended, 20.0)
            # The spans that the killed processes still had are lost; those after them are not.
            run = named(found.of(trace_id))["launcher", "run 1"]
            written = (platform.folder / "killed").read_text()
            assert written.startswith(f"00-{trace_id}-{run.span_id}-")
        assert not [body for body in found.bodies if b"secret" in body or PROGRAM.encode() in body]
