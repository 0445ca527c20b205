"""Alerts: valid, on metrics of the catalogue, fired by what they are for and by nothing else, and
linked to their runbooks."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml

from services.allinone.composition import WIRINGS
from tests.charts.charts import CHARTS, ROOT, SERVICES, UMBRELLA, Helm, merged, of_kind
from tests.charts.matrix import MONITORED
from tools.cluster.programs import program
from tools.metrics_page import catalogue, series_of

pytestmark = pytest.mark.kubernetes

RULES = CHARTS / UMBRELLA / "files" / "alerts.yaml"
RUNBOOKS = ROOT / "docs" / "runbooks.md"
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
    used = {name for rule in alerts() for name in _USED.findall(rule["expr"])}
    assert used
    known = series_of(catalogue())
    assert used - known == set()
    described = {
        name
        for rule in alerts()
        for text in rule["annotations"].values()
        for name in _USED.findall(text)
    }
    assert described - known == set()


def anchors(page: Path) -> set[str]:
    return {
        re.sub(r"[^a-z0-9 -]", "", title.lower()).replace(" ", "-")
        for title in re.findall(r"^#+ (.+)$", page.read_text(), re.MULTILINE)
    }


def test_every_alert_says_what_is_wrong_and_links_to_its_runbook(helm: Helm) -> None:
    texts = ["summary", "description", "runbook_url"]
    assert all(list(rule["annotations"]) == texts for rule in alerts())
    linked = {rule["alert"]: rule["annotations"]["runbook_url"] for rule in alerts()}
    assert linked == {name: f"docs/runbooks.md#{name.lower()}" for name in linked}
    assert {name.lower() for name in linked} <= anchors(RUNBOOKS)
    # No runbook is left of an alert that is gone.
    described = set(re.findall(r"^### (\w+)$", RUNBOOKS.read_text(), re.MULTILINE))
    assert described == set(linked)
    site = "https://git.example.org/shiftwork/docs/runbooks.md"
    (rule,) = of_kind(
        helm.template(UMBRELLA, merged(MONITORED, {"alerts": {"runbooks": site}})), "PrometheusRule"
    )
    (group,) = rule["spec"]["groups"]
    assert {each["annotations"]["runbook_url"].partition("#")[0] for each in group["rules"]} == {
        site
    }


def test_the_number_of_services_is_that_of_the_platform() -> None:
    (rule,) = (each for each in alerts() if each["alert"] == "ShiftworkServiceAbsent")
    assert f"< {len(WIRINGS)}" in rule["expr"]
    assert len(WIRINGS) == len(SERVICES)


def series(name: str, values: str, **labels: str) -> dict[str, str]:
    pairs = ",".join(f'{key}="{text}"' for key, text in {"namespace": "ns", **labels}.items())
    return {"series": f"{name}{{{pairs}}}", "values": values}


def waits(long: str, priority: str) -> list[dict[str, str]]:
    """Starts that waited between an hour and four."""
    name = "shiftwork_queue_wait_seconds_bucket"
    bounds = {"3600.0": "0x400", "14400.0": long, "+Inf": long}
    return [
        series(name, values, group="a100", priority=priority, le=le)
        for le, values in bounds.items()
    ]


def checkpoints(quick: str, all_: str) -> list[dict[str, str]]:
    """Checkpoints: those within five minutes, and all within fifteen."""
    name = "shiftwork_preemption_checkpoint_seconds_bucket"
    bounds = {"300.0": quick, "900.0": all_, "+Inf": all_}
    return [series(name, values, group="a100", le=le) for le, values in bounds.items()]


def tries_failed(values: str, why: str, channel: str = "mail") -> dict[str, str]:
    name = "shiftwork_monitor_message_tries_failed_total"
    return series(name, values, channel=channel, why=why)


def sent(values: str, channel: str) -> dict[str, str]:
    return series("shiftwork_monitor_messages_sent_total", values, channel=channel)


def given_up(values: str, why: str) -> dict[str, str]:
    name = "shiftwork_monitor_messages_given_up_total"
    return series(name, values, channel="webhook", why=why)


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
            series("shiftwork_event_stream_limit_bytes", "100x20", service="gateway"),
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
    (
        "ShiftworkOutboxLag",
        [series("shiftwork_outbox_oldest_age_seconds", "0+60x20", service="scheduler")],
        "8m",
        {"service": "scheduler", "severity": "critical"},
    ),
    (
        "ShiftworkConsumerLag",
        [series("shiftwork_consumer_waiting", "1500x30", consumer="quota")],
        "20m",
        {"consumer": "quota", "severity": "warning"},
    ),
    (
        "ShiftworkHeldGpusIdle",
        [
            series("shiftwork_held_gpu_measured_seconds_total", "0+480x200", group="a100"),
            series("shiftwork_held_gpu_idle_seconds_total", "0+300x200", group="a100"),
        ],
        "130m",
        {"group": "a100", "severity": "info"},
    ),
    (
        "ShiftworkHighPriorityWaits",
        waits("0+1x400", priority="high"),
        "400m",
        {"group": "a100", "priority": "high", "severity": "warning"},
    ),
    (
        "ShiftworkCheckpointsSlow",
        checkpoints("0+0x200", "0+1x200"),
        "100m",
        {"group": "a100", "severity": "warning"},
    ),
    (
        "ShiftworkWorkLost",
        [
            series("shiftwork_gpus", "10x400", group="a100", state="used"),
            series("shiftwork_gpus", "90x400", group="a100", state="free"),
            series("shiftwork_lost_gpu_seconds_total", "0+90x400", group="a100", cause="failure"),
        ],
        "390m",
        {"group": "a100", "severity": "warning"},
    ),
    (
        "ShiftworkNodesNotReady",
        [series("shiftwork_nodes", "0 2x40", group="a100", state="not_ready")],
        "20m",
        {"group": "a100", "severity": "warning"},
    ),
    (
        "ShiftworkSamplesFail",
        [series("shiftwork_launcher_samples_failed_total", "0+1x20", pod="a")],
        "16m",
        {"severity": "warning"},
    ),
    (
        "ShiftworkSamplesDropped",
        [series("shiftwork_monitor_samples_dropped_total", "0+6x60", why="time")],
        "30m",
        {"why": "time", "severity": "warning"},
    ),
    (
        "ShiftworkAbnormalTasksLeftOut",
        [series("shiftwork_abnormal_failed_total", "0x5 1x20", loop="abnormal-actions")],
        "8m",
        {"loop": "abnormal-actions", "severity": "warning"},
    ),
    (
        "ShiftworkOutputLost",
        [
            series("shiftwork_log_agent_lost_bytes_total", "0x20", pod="a"),
            series("shiftwork_log_agent_gaps_total", "0x5 1x20", pod="a"),
        ],
        "8m",
        {"severity": "critical"},
    ),
    (
        "ShiftworkOutputNotCompressed",
        [series("shiftwork_log_seal_failures_total", "0+1x20", pod="a")],
        "15m",
        {"severity": "warning"},
    ),
    (
        "ShiftworkMailNotSent",
        [tries_failed("0x5 1 2 3 4 5 5 5 5 5 6x20", "no_way"), sent("9x40", "mail")],
        "25m",
        {"severity": "warning"},
    ),
    (
        "ShiftworkMessagesLate",
        [series("shiftwork_monitor_messages_overdue_seconds", "0 301+60x30", channel="mail")],
        "15m",
        {"severity": "warning", "channel": "mail"},
    ),
    (
        "ShiftworkMessagesGivenUp",
        [given_up("0+1x60", "failed"), sent("0x30 5x30", "webhook")],
        "50m",
        {"severity": "warning", "channel": "webhook"},
    ),
    (
        "ShiftworkRecipientsUnknown",
        [tries_failed("0+1x40", "unknown", "webhook")],
        "35m",
        {"severity": "warning"},
    ),
    (
        "ShiftworkLogLinesLost",
        [series("shiftwork_log_lines_lost_total", "0x5 40x20", pod="a")],
        "8m",
        {"severity": "warning"},
    ),
    ("ShiftworkAbsent", [], "6m", {"severity": "critical"}),
)
# The same metrics as they are when nothing is wrong, or not for long enough.
CALM: dict[str, list[dict[str, str]]] = {
    "ShiftworkNobodyLeads": [],
    "ShiftworkServiceAbsent": [],
    "ShiftworkAbsent": [],
    # A leader that dies is followed by another one.
    "ShiftworkSeveralLead": [
        series("shiftwork_leads", "1 1 0x20", service="quota", pod="b"),
        series("shiftwork_leads", "0 1 1x20", service="quota", pod="c"),
    ],
    "ShiftworkEventsNotPublished": [
        series("shiftwork_outbox_waiting", "5 0 5 0 7 0 3 0 4 0 4 0 4 0 4 0", service="quota")
    ],
    "ShiftworkEventStreamFilling": [
        series("shiftwork_event_stream_bytes", "60x20", service="gateway"),
        series("shiftwork_event_stream_limit_bytes", "100x20", service="gateway"),
    ],
    "ShiftworkEventsRefused": [series("shiftwork_events_refused", "0x8 1 1 0x9", service="quota")],
    "ShiftworkEventsSetApart": [
        series("shiftwork_events_set_apart_total", "3x20", service="quota")
    ],
    "ShiftworkConsumptionPaused": [
        series("shiftwork_consumption_paused", "0x10 1 0x9", service="quota")
    ],
    "ShiftworkPruneFails": [
        series("shiftwork_prunes_failed_total", "0x5 1x20", service="quota", what="runs")
    ],
    "ShiftworkPruneHeld": [
        series("shiftwork_prune_held_seconds", "100000x50", service="quota", what="runs")
    ],
    "ShiftworkUnreadableRows": [
        series("shiftwork_unreadable_rows_total", "2x20", service="submit", kind="TaskRow")
    ],
    "ShiftworkDeadLetters": [series("shiftwork_dead_letters_total", "2x20", service="quota")],
    # Another process of the scheduler decided first: that is nobody's fault.
    "ShiftworkPlanRefused": [
        series("shiftwork_scheduler_plans_refused_total", "0+1x20", why="conflict")
    ],
    "ShiftworkGroupHeldUp": [
        series("shiftwork_scheduler_group_held_up_rounds_total", "60x20", group="a100")
    ],
    "ShiftworkRowSetApart": [series("shiftwork_scheduler_rows_set_apart", "0x20", kind="Task")],
    "ShiftworkMemoryDiffered": [series("shiftwork_terms_failed_total", "1x20", service="launcher")],
    "ShiftworkRunNotEvaluated": [
        series("shiftwork_launcher_failed_steps_total", "1x20", service="launcher")
    ],
    "ShiftworkNodeQuarantined": [
        series("shiftwork_launcher_quarantines_total", "1x20", service="launcher")
    ],
    "ShiftworkOutputDamaged": [
        series("shiftwork_log_damaged_bytes_total", "9x20", service="log_collector")
    ],
    "ShiftworkOutputNotUploaded": [
        series("shiftwork_log_upload_failing_seconds", "0 60 120 0 60 120 0x15")
    ],
    "ShiftworkServersUnreachable": [
        series("shiftwork_retries_total", "0 9x20", service="quota", part="relay")
    ],
    "ShiftworkRequestsFail": [
        series("shiftwork_http_requests_total", "0+99x20", status="200"),
        series("shiftwork_http_requests_total", "0+1x20", status="503"),
    ],
    "ShiftworkDecisionsSlow": [
        series("shiftwork_scheduler_decide_seconds_bucket", "0+10x20", le="1"),
        series("shiftwork_scheduler_decide_seconds_bucket", "0+10x20", le="5"),
        series("shiftwork_scheduler_decide_seconds_bucket", "0+10x20", le="+Inf"),
    ],
    "ShiftworkOutboxLag": [
        series("shiftwork_outbox_oldest_age_seconds", "0 1 200 2 0 1 2 0x20", service="scheduler")
    ],
    "ShiftworkConsumerLag": [
        series("shiftwork_consumer_waiting", "9000 0 9000 0 8000 4000 800 0x25", consumer="quota")
    ],
    "ShiftworkHeldGpusIdle": [
        series("shiftwork_held_gpu_measured_seconds_total", "0+480x200", group="a100"),
        series("shiftwork_held_gpu_idle_seconds_total", "0+120x200", group="a100"),
    ],
    # Tasks of no importance may wait for hours.
    "ShiftworkHighPriorityWaits": waits("0+1x400", priority="low"),
    "ShiftworkCheckpointsSlow": checkpoints("0+1x200", "0+1x200"),
    "ShiftworkWorkLost": [
        series("shiftwork_gpus", "10x400", group="a100", state="used"),
        series("shiftwork_lost_gpu_seconds_total", "0+30x400", group="a100", cause="failure"),
    ],
    "ShiftworkNodesNotReady": [
        series("shiftwork_nodes", "0 0 1 1 1 1 1 0x40", group="a100", state="not_ready"),
        series("shiftwork_nodes", "1x40", group="a100", state="cordoned"),
    ],
    "ShiftworkSamplesFail": [
        series("shiftwork_launcher_samples_failed_total", "0x5 1x20", pod="a")
    ],
    "ShiftworkSamplesDropped": [
        series("shiftwork_monitor_samples_dropped_total", "0 9x60", why="time")
    ],
    # Left out before the monitor was mended.
    "ShiftworkAbnormalTasksLeftOut": [
        series("shiftwork_abnormal_failed_total", "3x60", loop="abnormal")
    ],
    "ShiftworkOutputLost": [
        series("shiftwork_log_agent_lost_bytes_total", "9x20", pod="a"),
        series("shiftwork_log_agent_gaps_total", "1x20", pod="a"),
    ],
    "ShiftworkOutputNotCompressed": [
        series("shiftwork_log_seal_failures_total", "0x5 1x20", pod="a")
    ],
    # The server fails for one person, and takes the mail of others.
    "ShiftworkMailNotSent": [tries_failed("0+1x40", "no_way"), sent("0+1x40", "mail")],
    # Many at once, and then none.
    "ShiftworkMessagesLate": [
        series(
            "shiftwork_monitor_messages_overdue_seconds", "0 400 460 520 0 400 0x30", channel="mail"
        )
    ],
    # Some receivers fail, and users who were disabled get nothing.
    "ShiftworkMessagesGivenUp": [
        given_up("0+1x60", "failed"),
        given_up("0+9x60", "not permitted or removed"),
        sent("0+2x60", "webhook"),
    ],
    # A gateway that was restarted.
    "ShiftworkRecipientsUnknown": [tries_failed("0 4 8 12 12x40", "unknown", "webhook")],
    "ShiftworkLogLinesLost": [series("shiftwork_log_lines_lost_total", "40x20", pod="a")],
}


def test_every_alert_has_a_case_in_which_it_fires_and_one_in_which_it_does_not() -> None:
    assert {case[0] for case in CASES} == {rule["alert"] for rule in alerts()} == CALM.keys()


@pytest.mark.parametrize("case", CASES, ids=[case[0] for case in CASES])
def test_an_alert_fires_in_its_case_and_is_quiet_in_the_other(
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
    leads = [series("shiftwork_leads", "1x400", service=name, pod="a") for name in SERVICES]
    own = {each["series"] for each in CALM[alert]}
    quiet = [*CALM[alert], *(each for each in leads if each["series"] not in own)]
    if alert == "ShiftworkSeveralLead":
        quiet = [*CALM[alert], *(each for each in leads if "quota" not in each["series"])]
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
