"""Alerts: valid, on metrics that the code has, and fired by what they are for."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml

from services.allinone.composition import WIRINGS
from tests.charts.charts import CHARTS, ROOT, SERVICES, UMBRELLA, Helm, of_kind
from tests.charts.matrix import MONITORED
from tools.cluster.programs import program

pytestmark = pytest.mark.kubernetes

RULES = CHARTS / UMBRELLA / "files" / "alerts.yaml"
_MADE = re.compile(r"(?:Counter|Gauge|Histogram|_family)\(\s*\"(shiftwork_\w+)\"")
_USED = re.compile(r"\bshiftwork_\w+")


def promtool(*arguments: str, folder: Path) -> None:
    done = subprocess.run(
        [program("promtool"), *arguments], cwd=folder, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr


def alerts() -> list[dict[str, Any]]:
    return [
        rule for group in yaml.safe_load(RULES.read_text())["groups"] for rule in group["rules"]
    ]


def test_promtool_takes_the_rules(helm: Helm, tmp_path: Path) -> None:
    objects = helm.template(UMBRELLA, MONITORED)
    (rule,) = of_kind(objects, "PrometheusRule")
    (tmp_path / "rendered.yaml").write_text(yaml.safe_dump(rule["spec"]))
    promtool("check", "rules", "--lint-fatal", "rendered.yaml", folder=tmp_path)
    promtool("check", "rules", "--lint-fatal", str(RULES), folder=tmp_path)


def test_metrics_of_the_rules_are_metrics_of_the_code() -> None:
    made = {
        name
        for top in ("libs/service", "services")
        for path in (ROOT / top).rglob("*.py")
        for name in _MADE.findall(path.read_text())
    }
    used = {name for rule in alerts() for name in _USED.findall(rule["expr"])}
    assert used
    known = {name + end for name in made for end in ("", "_bucket", "_count", "_sum")}
    assert used - known == set()
    described = {
        name
        for rule in alerts()
        for text in rule["annotations"].values()
        for name in _USED.findall(text)
    }
    assert described - known == set()


def test_the_number_of_services_is_that_of_the_platform() -> None:
    (rule,) = (each for each in alerts() if each["alert"] == "ShiftworkServiceAbsent")
    assert f"< {len(WIRINGS)}" in rule["expr"]
    assert len(WIRINGS) == len(SERVICES)


def series(name: str, values: str, **labels: str) -> dict[str, str]:
    pairs = ",".join(f'{key}="{text}"' for key, text in {"namespace": "ns", **labels}.items())
    return {"series": f"{name}{{{pairs}}}", "values": values}


LED = [series("shiftwork_leads", "1x20", service=name, pod="a") for name in SERVICES[1:]]
# What Prometheus saw, a value a minute; after so many minutes; the alert, with its labels.
CASES: tuple[tuple[str, list[dict[str, str]], str, dict[str, str]], ...] = (
    (
        "ShiftworkNobodyLeads",
        [*LED, series("shiftwork_leads", "1 0x19", service="submit", pod="a")],
        "5m",
        {"service": "submit", "severity": "critical"},
    ),
    ("ShiftworkServiceAbsent", LED, "6m", {"severity": "critical"}),
    (
        "ShiftworkSeveralLead",
        [series("shiftwork_leads", "1x20", service="quota", pod=pod) for pod in "ab"],
        "5m",
        {"service": "quota", "severity": "critical"},
    ),
    (
        "ShiftworkEventsNotPublished",
        [series("shiftwork_outbox_waiting", "0 5x20", service="quota")],
        "12m",
        {"service": "quota", "severity": "warning"},
    ),
    (
        "ShiftworkEventStreamFilling",
        [
            series("shiftwork_event_stream_bytes", "80x20", service="gateway"),
            series("shiftwork_event_stream_bytes_max", "100x20", service="gateway"),
        ],
        "12m",
        {"severity": "critical"},
    ),
    (
        "ShiftworkEventsRefused",
        [series("shiftwork_events_refused", "0 1x20", service="quota")],
        "12m",
        {"service": "quota", "severity": "warning"},
    ),
    (
        "ShiftworkEventsSetApart",
        [series("shiftwork_events_set_apart_total", "0x5 1x20", service="quota")],
        "8m",
        {"service": "quota", "severity": "critical"},
    ),
    (
        "ShiftworkConsumptionPaused",
        [series("shiftwork_consumption_paused", "0 1x20", service="quota")],
        "12m",
        {"service": "quota", "severity": "critical"},
    ),
    (
        "ShiftworkPruneFails",
        [series("shiftwork_prunes_failed_total", "0 1+1x20", service="quota", what="runs")],
        "20m",
        {"service": "quota", "what": "runs", "severity": "warning"},
    ),
    (
        "ShiftworkPruneHeld",
        [series("shiftwork_prune_held_seconds", "300000x50", service="quota", what="runs")],
        "35m",
        {"service": "quota", "what": "runs", "severity": "warning"},
    ),
    (
        "ShiftworkUnreadableRows",
        [series("shiftwork_unreadable_rows_total", "0x5 1x20", service="submit", kind="TaskRow")],
        "8m",
        {"service": "submit", "kind": "TaskRow", "severity": "warning"},
    ),
    (
        "ShiftworkDeadLetters",
        [series("shiftwork_dead_letters_total", "0x5 1x20", service="quota")],
        "8m",
        {"service": "quota", "severity": "warning"},
    ),
    (
        "ShiftworkPlanRefused",
        [series("shiftwork_scheduler_plans_refused_total", "0x5 1x20", why="violation")],
        "8m",
        {"why": "violation", "severity": "warning"},
    ),
    (
        "ShiftworkGroupHeldUp",
        [series("shiftwork_scheduler_group_held_up_rounds_total", "0+60x20", group="a100")],
        "8m",
        {"group": "a100", "severity": "critical"},
    ),
    (
        "ShiftworkRowSetApart",
        [series("shiftwork_scheduler_rows_set_apart", "0x5 1x20", kind="Task")],
        "8m",
        {"kind": "Task", "severity": "critical"},
    ),
    (
        "ShiftworkMemoryDiffered",
        [series("shiftwork_terms_failed_total", "0x5 1x20", service="launcher")],
        "8m",
        {"service": "launcher", "severity": "warning"},
    ),
    (
        "ShiftworkRunNotEvaluated",
        [series("shiftwork_launcher_failed_steps_total", "0x5 1x20", service="launcher")],
        "8m",
        {"service": "launcher", "severity": "critical"},
    ),
    (
        "ShiftworkNodeQuarantined",
        [series("shiftwork_launcher_quarantines_total", "0x5 1x20", service="launcher")],
        "8m",
        {"service": "launcher", "severity": "warning"},
    ),
    (
        "ShiftworkOutputDamaged",
        [series("shiftwork_log_damaged_bytes_total", "0x5 4096x20", service="log_collector")],
        "8m",
        {"service": "log_collector", "severity": "critical"},
    ),
    (
        "ShiftworkOutputNotUploaded",
        [series("shiftwork_log_upload_failing_seconds", "0+120x20", service="log_collector")],
        "12m",
        {"severity": "warning"},
    ),
    (
        "ShiftworkServersUnreachable",
        [series("shiftwork_retries_total", "0+60x20", service="quota", part="relay")],
        "12m",
        {"service": "quota", "severity": "warning"},
    ),
    (
        "ShiftworkRequestsFail",
        [
            series("shiftwork_http_requests_total", "0+60x20", status="200"),
            series("shiftwork_http_requests_total", "0+60x20", status="503"),
        ],
        "12m",
        {"severity": "warning"},
    ),
    (
        "ShiftworkDecisionsSlow",
        [
            series("shiftwork_scheduler_decide_seconds_bucket", "0+0x20", le="1"),
            series("shiftwork_scheduler_decide_seconds_bucket", "0+10x20", le="5"),
            series("shiftwork_scheduler_decide_seconds_bucket", "0+10x20", le="+Inf"),
        ],
        "18m",
        {"severity": "warning"},
    ),
    ("ShiftworkAbsent", [], "6m", {"severity": "critical"}),
)


def test_every_alert_has_its_case() -> None:
    assert {case[0] for case in CASES} == {rule["alert"] for rule in alerts()}


@pytest.mark.parametrize("case", CASES, ids=[case[0] for case in CASES])
def test_an_alert_fires_in_its_case(
    case: tuple[str, list[dict[str, str]], str, dict[str, str]], tmp_path: Path
) -> None:
    alert, seen, after, labels = case
    place = {} if alert == "ShiftworkAbsent" else {"namespace": "ns"}
    rule = next(each for each in alerts() if each["alert"] == alert)
    # Texts are filled in by Prometheus: only their names are compared.
    bare = {key: text for key, text in rule.items() if key != "annotations"}
    (tmp_path / "rule.yaml").write_text(
        yaml.safe_dump({"groups": [{"name": "one", "rules": [bare]}]})
    )
    quiet = [series("shiftwork_leads", "1x30", service=name, pod="a") for name in SERVICES]
    expected = {"exp_labels": {**place, **labels}}
    test = {
        "rule_files": ["rule.yaml"],
        "evaluation_interval": "1m",
        "tests": [
            {
                "interval": "1m",
                "input_series": seen,
                "alert_rule_test": [
                    {"eval_time": after, "alertname": alert, "exp_alerts": [expected]}
                ],
            },
            {
                "interval": "1m",
                "input_series": quiet,
                "alert_rule_test": [{"eval_time": after, "alertname": alert, "exp_alerts": []}],
            },
        ],
    }
    (tmp_path / "test.yaml").write_text(yaml.safe_dump(test))
    promtool("test", "rules", "test.yaml", folder=tmp_path)
