"""The hand-worked schedules agree with a second, slow computation of the same rules."""

from __future__ import annotations

import pytest

from services.scheduler.lab.record import RunRecord
from services.scheduler.lab.run_options import Options
from tests.services.scheduler.lab import drivers
from tests.services.scheduler.lab.schedules import HOUR, SCHEDULES, Schedule

CASES = [
    pytest.param(schedule, policy, id=f"{schedule.name}: {policy}")
    for schedule in SCHEDULES
    for policy in schedule.runs
]


def stretches(
    schedule: Schedule, policy: str, monkeypatch: pytest.MonkeyPatch
) -> list[list[tuple[float, float]]]:
    found: list[list[tuple[float, float]]] = [[] for _ in schedule.jobs]
    real = RunRecord.stretch

    def listening(
        self: RunRecord, number: int, start: float, end: float, *more: object, **named: object
    ) -> None:
        found[number].append((round(start / HOUR, 6), round(end / HOUR, 6)))
        real(self, number, start, end, *more, **named)  # type: ignore[arg-type]

    monkeypatch.setattr(RunRecord, "stretch", listening)
    record = drivers.drive(schedule.workload(), policy, Options(restart_cost_s=0.0), print)
    assert record.finished == len(schedule.jobs)
    return found


@pytest.mark.parametrize(("schedule", "policy"), CASES)
def test_as_worked_out_by_hand(
    schedule: Schedule, policy: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    expected = [
        [(round(start, 6), round(end, 6)) for start, end in runs] for runs in schedule.runs[policy]
    ]
    assert stretches(schedule, policy, monkeypatch) == expected


@pytest.mark.parametrize("schedule", SCHEDULES, ids=lambda schedule: schedule.name)
def test_every_job_works_its_hours_and_no_node_is_used_twice(schedule: Schedule) -> None:
    for policy, runs in schedule.runs.items():
        for (submit, duration, _), stretch in zip(schedule.jobs, runs, strict=True):
            assert sum(end - start for start, end in stretch) == pytest.approx(duration), policy
            assert stretch[0][0] >= submit
        for time in {start for stretch in runs for start, _ in stretch}:
            used = sum(
                nodes
                for (_, _, nodes), stretch in zip(schedule.jobs, runs, strict=True)
                if any(start <= time < end for start, end in stretch)
            )
            assert used <= 4, (policy, time)
