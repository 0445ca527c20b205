"""The catalogue of metrics: what it refuses, and that nothing is counted beside it."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from prometheus_client import REGISTRY

from libs.service.metrics import CATALOGUE, LABELS, Kind, Metrics, problem_of
from tools.metrics_page import catalogue

ROOT = Path(__file__).parents[3]


@pytest.mark.parametrize(
    ("name", "kind", "problem"),
    [
        ("shiftwork_runs_total", "counter", ""),
        ("shiftwork_wait_seconds", "histogram", ""),
        ("shiftwork_gpus", "gauge", ""),
        ("shiftwork_runs", "counter", "counters end in _total"),
        ("shiftwork_gpus_total", "gauge", "counters end in _total"),
        ("shiftwork_wait_ms", "gauge", "ms is not a base unit"),
        ("shiftwork_gpu_percent", "gauge", "percent is not a base unit"),
        ("shiftwork_wait_minutes_total", "counter", "minutes is not a base unit"),
        ("shiftwork_runs_count", "gauge", "_count belongs to Prometheus"),
        ("shiftwork_wait", "histogram", "ends in its unit"),
        ("shiftwork_queueWait", "gauge", "lower case"),
        ("queue_wait_seconds", "gauge", "shiftwork_"),
    ],
)
def test_names_follow_the_conventions_of_prometheus(name: str, kind: Kind, problem: str) -> None:
    found = problem_of(name, kind)
    assert problem in found
    assert bool(found) is bool(problem)


def test_a_bad_name_an_unbounded_label_and_a_second_declaration_are_refused() -> None:
    declare = Metrics("a test")
    before = dict(CATALOGUE)
    with pytest.raises(ValueError, match="shiftwork_runs: counters end in _total"):
        declare.counter("shiftwork_runs", "Runs")
    with pytest.raises(ValueError, match="LABELS has no bound for user"):
        declare.gauge("shiftwork_of_user_gpus", "GPUs of a user", ["user"])
    with pytest.raises(ValueError, match="shiftwork_leads is declared twice"):
        declare.gauge("shiftwork_leads", "Again")
    assert before == CATALOGUE


def test_no_metric_is_made_without_the_catalogue() -> None:
    made = re.compile(r"import [^\n]*\b(Counter|Gauge|Histogram|Summary|Info)\b")
    found = {
        str(path.relative_to(ROOT))
        for top in ("libs", "services")
        for path in (ROOT / top).rglob("*.py")
        for line in path.read_text().splitlines()
        if "prometheus_client" in line and made.search(line)
    }
    assert found == {"libs/service/metrics.py"}
    assert {
        name
        for family in REGISTRY.collect()
        if (name := family.name).startswith(("shiftwork_", "DCGM_"))
        and name not in catalogue()
        and f"{name}_total" not in catalogue()
    } == set()


def test_tasks_are_a_label_only_where_a_setting_bounds_them_and_users_nowhere() -> None:
    assert not {"user", "owner", "task_id", "run", "attempt", "address"} & LABELS.keys()
    of_tasks = [each for each in catalogue().values() if "task" in each.labels]
    assert {each.setting for each in of_tasks} == {"SHIFTWORK_MONITOR_TASK_METRICS_MAX"}


def test_every_label_with_a_bound_is_used() -> None:
    assert {label for each in catalogue().values() for label in each.labels} == LABELS.keys()
