"""The Grafana dashboards of the chart, from one table of panels. `make gen` writes the files.

``tests/charts/test_dashboards.py`` compares them with Grafana's published schema and evaluates
every query on Prometheus.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

Json = dict[str, Any]

FOLDER = Path("deploy/k8s/charts/shiftwork/dashboards")
SOURCE: Json = {"type": "prometheus", "uid": "${datasource}"}
# Of 24 columns.
WIDTH, HEIGHT = 8, 8
COLUMNS = 24
# What every query selects: several platforms in one Prometheus, and one or all node groups.
NS = 'namespace=~"$namespace"'
GROUP = f'{NS},group=~"$group"'
RATE = "[$__rate_interval]"


@dataclass(frozen=True, slots=True)
class Panel:
    """One chart: its queries by their legends. ``unit``: Grafana's name of it."""

    title: str
    unit: str
    queries: dict[str, str]
    text: str = ""
    stacked: bool = False
    highest: float | None = None


@dataclass(frozen=True, slots=True)
class Board:
    """One dashboard: rows of panels by their titles."""

    uid: str
    title: str
    rows: dict[str, Sequence[Panel]]
    by_group: bool = False


def _by(labels: str, expression: str) -> str:
    return f"sum by ({labels}) ({expression})"


def _rate(metric: str, where: str = NS, over: str = RATE) -> str:
    return f"rate({metric}{{{where}}}{over})"


def _hourly(metric: str, by: str = "") -> str:
    """The increase of a counter in an hour."""
    return f"sum by ({by}) (increase({metric}{{{NS}}}[1h]))"


def _quantiles(metric: str, by: str, where: str = NS, *, legend: str = "") -> dict[str, str]:
    """The median and the ninth decile of a histogram."""
    labels = f"{by}, le" if by else "le"
    rate = _by(labels, _rate(f"{metric}_bucket", where))
    named = legend or (f"{{{{{by}}}}}" if by else "")
    return {
        f"{named} {name}".strip(): f"histogram_quantile({quantile}, {rate})"
        for name, quantile in (("half", 0.5), ("9 in 10", 0.9))
    }


# The monitor counts activity once a minute, so a shorter time shows steps.
_MEASURED, _IDLE, _BUSY = (
    f"sum({_rate(f'shiftwork_held_gpu_{what}_seconds_total', GROUP, '[5m]')})"
    for what in ("measured", "idle", "busy")
)
_LOST = _by("cause", _rate("shiftwork_lost_gpu_seconds_total", GROUP))
_HELD = f'sum(shiftwork_gpus{{{GROUP},state="used"}})'

OVERVIEW = Board(
    "shiftwork-overview",
    "Shiftwork: overview",
    {
        "GPUs: held, and active": (
            Panel(
                "GPUs by state",
                "short",
                {"{{state}}": _by("state", f"shiftwork_gpus{{{GROUP}}}")},
                "Occupancy: `used` are held by runs, whatever they do with them.",
                stacked=True,
            ),
            Panel(
                "Held, measured, active",
                "short",
                {
                    "held": _HELD,
                    "measured": _MEASURED,
                    "active": f"{_MEASURED} - {_IDLE}",
                    "at full utilization": _BUSY,
                },
                "Activity: held GPUs that are measured, those above the limit of idle ones, and how"
                " many fully used GPUs would do the same.",
            ),
            Panel(
                "Utilization of held GPUs",
                "percentunit",
                {
                    "mean": f"{_BUSY} / ({_MEASURED} > 0)",
                    "idle part": f"{_IDLE} / ({_MEASURED} > 0)",
                },
                highest=1,
            ),
        ),
        "Tasks and nodes": (
            Panel(
                "Tasks by state",
                "short",
                {"{{state}}": _by("state", f"shiftwork_tasks{{{GROUP}}}")},
                stacked=True,
            ),
            Panel(
                "Nodes by state",
                "short",
                {"{{state}}": _by("state", f"shiftwork_nodes{{{GROUP}}}")},
                stacked=True,
            ),
            Panel(
                "Decisions",
                "ops",
                {"{{kind}}": _by("kind", _rate("shiftwork_scheduler_decisions_total"))},
            ),
        ),
        "Waiting": (
            Panel(
                "Queue wait by priority",
                "s",
                _quantiles("shiftwork_queue_wait_seconds", "priority", GROUP),
                "From submission, or the end of the last attempt, to the assignment.",
            ),
            Panel(
                "Starts by priority",
                "ops",
                {
                    "{{priority}}": _by(
                        "priority", _rate("shiftwork_queue_wait_seconds_count", GROUP)
                    )
                },
            ),
            Panel(
                "Queued tasks by group",
                "short",
                {"{{group}}": _by("group", f'shiftwork_tasks{{{GROUP},state="queued"}}')},
                stacked=True,
            ),
        ),
        "Preemption and lost work": (
            Panel(
                "Preemptions by reason",
                "ops",
                {"{{reason}}": _by("reason", _rate("shiftwork_preemptions_total", GROUP))},
                "Runs that were asked to leave.",
                stacked=True,
            ),
            Panel(
                "Checkpoint latency",
                "s",
                _quantiles("shiftwork_preemption_checkpoint_seconds", "", GROUP),
                "From the request to leave to the acknowledged checkpoint.",
            ),
            Panel(
                "GPUs whose work is done again",
                "short",
                {"{{cause}}": _LOST},
                "GPU-seconds per second that attempts held between their last checkpoint and the"
                " preemption or failure that ended them.",
                stacked=True,
            ),
        ),
    },
    by_group=True,
)

SERVICES = Board(
    "shiftwork-services",
    "Shiftwork: services",
    {
        "Leaders": (
            Panel("Leaders", "short", {"{{service}}": _by("service", f"shiftwork_leads{{{NS}}}")}),
            Panel(
                "Waits for PostgreSQL and NATS",
                "ops",
                {"{{service}} {{part}}": _by("service, part", _rate("shiftwork_retries_total"))},
            ),
            Panel(
                "Versions",
                "short",
                {"{{version}}": f"count by (version) (shiftwork_build_info{{{NS}}})"},
            ),
        ),
        "Lag": (
            Panel(
                "Outbox: events that wait",
                "short",
                {"{{service}}": f"max by (service) (shiftwork_outbox_waiting{{{NS}}})"},
            ),
            Panel(
                "Outbox: age of the oldest",
                "s",
                {"{{service}}": f"max by (service) (shiftwork_outbox_oldest_age_seconds{{{NS}}})"},
            ),
            Panel(
                "Consumers: events still to handle",
                "short",
                {"{{consumer}}": f"max by (consumer) (shiftwork_consumer_waiting{{{NS}}})"},
            ),
            Panel(
                "Stream of events: full",
                "percentunit",
                {
                    "full": f"max(shiftwork_event_stream_bytes{{{NS}}})"
                    f" / (max(shiftwork_event_stream_limit_bytes{{{NS}}}) > 0)"
                },
                highest=1,
            ),
            Panel(
                "Events handled",
                "ops",
                {"{{service}}": _by("service", _rate("shiftwork_events_handled_total"))},
            ),
            Panel(
                "Events published",
                "ops",
                {"{{service}}": _by("service", _rate("shiftwork_events_published_total"))},
            ),
        ),
        "Time": (
            Panel("Decision time", "s", _quantiles("shiftwork_scheduler_decide_seconds", "")),
            Panel(
                "Loop steps, 99 in 100",
                "s",
                {
                    "{{service}} {{loop}}": "topk(10, histogram_quantile(0.99, "
                    + _by("service, loop, le", _rate("shiftwork_loop_step_seconds_bucket"))
                    + "))"
                },
            ),
            Panel(
                "Explanations and pages of the queue",
                "s",
                {
                    **_quantiles("shiftwork_scheduler_explain_seconds", "", legend="explain"),
                    **_quantiles("shiftwork_scheduler_queue_page_seconds", "", legend="page"),
                },
            ),
            Panel(
                "HTTP requests by status",
                "reqps",
                {"{{status}}": _by("status", _rate("shiftwork_http_requests_total"))},
                stacked=True,
            ),
            Panel(
                "HTTP: time to the first byte, 99 in 100",
                "s",
                {
                    "{{method}} {{route}}": "topk(10, histogram_quantile(0.99, "
                    + _by("method, route, le", _rate("shiftwork_http_request_seconds_bucket"))
                    + "))"
                },
                "Long polls and streams wait by design.",
            ),
            Panel(
                "Commands",
                "ops",
                {"{{type}} {{outcome}}": _by("type, outcome", _rate("shiftwork_commands_total"))},
            ),
        ),
        "Errors": (
            Panel(
                "Dead letters and refused events",
                "short",
                {
                    "{{service}} not handled": _hourly("shiftwork_dead_letters_total", "service"),
                    "{{service}} not published": _hourly(
                        "shiftwork_events_set_apart_total", "service"
                    ),
                    "{{service}} refused": _by("service", f"shiftwork_events_refused{{{NS}}}"),
                },
                "In an hour; of refused events how many wait now.",
            ),
            Panel(
                "Refused plans and rows set apart",
                "short",
                {
                    "plans: {{why}}": _hourly("shiftwork_scheduler_plans_refused_total", "why"),
                    "rows: {{kind}}": f"max by (kind) (shiftwork_scheduler_rows_set_apart{{{NS}}})",
                },
            ),
            Panel(
                "Tasks and actions that the rules left out",
                "short",
                {"{{loop}}": _hourly("shiftwork_abnormal_failed_total", "loop")},
            ),
            Panel(
                "Rows that cannot be read or deleted",
                "short",
                {
                    "{{service}} {{kind}}": _hourly(
                        "shiftwork_unreadable_rows_total", "service, kind"
                    ),
                    "{{service}} {{what}}": _hourly(
                        "shiftwork_prunes_failed_total", "service, what"
                    ),
                },
            ),
        ),
    },
)

SIGNALS = Board(
    "shiftwork-signals",
    "Shiftwork: nodes, GPUs and output",
    {
        "GPUs": (
            Panel(
                "Utilization",
                "percent",
                {"{{node}} {{gpu}}": f"DCGM_FI_DEV_GPU_UTIL{{{NS}}}"},
                highest=100,
            ),
            Panel(
                "Memory",
                "percentunit",
                {
                    "{{node}} {{gpu}}": f"DCGM_FI_DEV_FB_USED{{{NS}}}"
                    f" / (DCGM_FI_DEV_FB_USED{{{NS}}} + DCGM_FI_DEV_FB_FREE{{{NS}}})"
                },
                highest=1,
            ),
            Panel("Power", "watt", {"{{node}} {{gpu}}": f"DCGM_FI_DEV_POWER_USAGE{{{NS}}}"}),
            Panel("Temperature", "celsius", {"{{node}} {{gpu}}": f"DCGM_FI_DEV_GPU_TEMP{{{NS}}}"}),
            Panel(
                "Last XID error",
                "short",
                {"{{node}} {{gpu}}": f"DCGM_FI_DEV_XID_ERRORS{{{NS}}} > 0"},
            ),
            Panel(
                "Double-bit errors",
                "short",
                {"{{node}} {{gpu}}": f"DCGM_FI_DEV_ECC_DBE_VOL_TOTAL{{{NS}}} > 0"},
            ),
        ),
        "Nodes": (
            Panel(
                "Processors",
                "percentunit",
                {"{{node}}": f"shiftwork_node_cpu_utilization_ratio{{{NS}}}"},
                highest=1,
            ),
            Panel(
                "Memory",
                "percentunit",
                {
                    "{{node}}": f"shiftwork_node_memory_used_bytes{{{NS}}}"
                    f" / shiftwork_node_memory_size_bytes{{{NS}}}"
                },
                highest=1,
            ),
            Panel("Load", "short", {"{{node}}": f"shiftwork_node_load1{{{NS}}}"}),
            Panel(
                "Disk of the data folder",
                "percentunit",
                {
                    "{{node}}": f"shiftwork_node_disk_used_bytes{{{NS}}}"
                    f" / shiftwork_node_disk_size_bytes{{{NS}}}"
                },
                highest=1,
            ),
            Panel(
                "Disks: read and written",
                "Bps",
                {
                    "{{node}} read": f"shiftwork_node_disk_read_bytes_per_second{{{NS}}}",
                    "{{node}} written": f"shiftwork_node_disk_written_bytes_per_second{{{NS}}}",
                },
            ),
            Panel(
                "Network: received and sent",
                "Bps",
                {
                    "{{node}} received": f"shiftwork_node_network_receive_bytes_per_second{{{NS}}}",
                    "{{node}} sent": f"shiftwork_node_network_transmit_bytes_per_second{{{NS}}}",
                },
            ),
        ),
        "Samples": (
            Panel(
                "Samples of nodes",
                "ops",
                {
                    "published": f"sum({_rate('shiftwork_launcher_samples_total')})",
                    "recorded": f"sum({_rate('shiftwork_monitor_samples_total')})",
                    "left out: {{why}}": _by(
                        "why", _rate("shiftwork_monitor_samples_dropped_total")
                    ),
                },
            ),
            Panel(
                "Rows of series that were written",
                "ops",
                {"rows": f"sum({_rate('shiftwork_monitor_series_rows_total')})"},
            ),
            Panel(
                "Blocks of series in memory",
                "short",
                {"blocks": f"sum(shiftwork_monitor_series_open{{{NS}}})"},
            ),
        ),
        "Messages about tasks": (
            Panel(
                "Sent, and tries that failed",
                "short",
                {
                    "{{channel}} sent": _hourly("shiftwork_monitor_messages_sent_total", "channel"),
                    "{{channel}}: {{why}}": _hourly(
                        "shiftwork_monitor_message_tries_failed_total", "channel, why"
                    ),
                },
                "In an hour.",
            ),
            Panel(
                "Waiting, and given up",
                "short",
                {
                    "{{channel}} waiting": _by(
                        "channel", f"shiftwork_monitor_messages_waiting{{{NS}}}"
                    ),
                    "{{channel}} given up: {{why}}": _hourly(
                        "shiftwork_monitor_messages_given_up_total", "channel, why"
                    ),
                },
                "Given up in an hour; they can be replayed.",
            ),
            Panel(
                "The oldest that waits, and the one due first",
                "s",
                {
                    "{{channel}} oldest": "max by (channel)"
                    f" (shiftwork_monitor_messages_oldest_age_seconds{{{NS}}})",
                    "{{channel}} overdue": "max by (channel)"
                    f" (shiftwork_monitor_messages_overdue_seconds{{{NS}}})",
                },
                "Messages for a receiver that fails are due later: they are old, and not overdue.",
            ),
        ),
        "Output of tasks": (
            Panel(
                "Compressed and uploaded",
                "Bps",
                {
                    "compressed": f"sum({_rate('shiftwork_log_sealed_bytes_total')})",
                    "uploaded": f"sum({_rate('shiftwork_log_uploaded_bytes_total')})",
                },
            ),
            Panel(
                "The bucket has taken nothing for",
                "s",
                {"seconds": f"max(shiftwork_log_upload_failing_seconds{{{NS}}})"},
            ),
            Panel(
                "Damaged, and not compressed",
                "short",
                {
                    "damaged bytes": _hourly("shiftwork_log_damaged_bytes_total"),
                    "not compressed": _hourly("shiftwork_log_seal_failures_total"),
                },
                "In an hour.",
            ),
            Panel(
                "Log agents: given out",
                "Bps",
                {"bytes": f"sum({_rate('shiftwork_log_agent_read_bytes_total')})"},
            ),
            Panel(
                "Log agents: in the spools",
                "bytes",
                {"bytes": f"sum(shiftwork_log_agent_spool_bytes{{{NS}}})"},
            ),
            Panel(
                "Log agents: lost",
                "short",
                {
                    "bytes": _hourly("shiftwork_log_agent_lost_bytes_total"),
                    "gaps": _hourly("shiftwork_log_agent_gaps_total"),
                    "lines that are no entries": _hourly("shiftwork_log_agent_bad_lines_total"),
                },
                "In an hour.",
            ),
        ),
    },
)
BOARDS = (OVERVIEW, SERVICES, SIGNALS)


def files(root: Path) -> dict[Path, str]:
    """Every dashboard's file with its text."""
    return {
        root / FOLDER / f"{board.uid}.json": json.dumps(dashboard(board), indent=1) + "\n"
        for board in BOARDS
    }


def dashboard(board: Board) -> Json:
    """The dashboard as Grafana reads it."""
    return {
        "uid": board.uid,
        "title": board.title,
        "description": "Generated by tools/dashboards.py of Shiftwork.",
        "tags": ["shiftwork"],
        "timezone": "browser",
        "editable": True,
        "graphTooltip": 1,
        "schemaVersion": 39,
        "time": {"from": "now-6h", "to": "now"},
        "refresh": "1m",
        "annotations": {"list": []},
        "templating": {"list": list(_variables(board))},
        "links": [
            {
                "title": "Shiftwork",
                "type": "dashboards",
                "icon": "external link",
                "tooltip": "",
                "tags": ["shiftwork"],
                "asDropdown": True,
                "targetBlank": False,
                "includeVars": True,
                "keepTime": True,
            }
        ],
        "panels": list(_panels(board)),
    }


def _variables(board: Board) -> Iterator[Json]:
    yield {"type": "datasource", "name": "datasource", "label": "Prometheus", "query": "prometheus"}
    yield _variable("namespace", "shiftwork_leads")
    if board.by_group:
        yield _variable("group", "shiftwork_gpus")


def _variable(label: str, metric: str) -> Json:
    return {
        "type": "query",
        "name": label,
        "label": label.capitalize(),
        "datasource": SOURCE,
        "query": f"label_values({metric}, {label})",
        "refresh": 2,
        "multi": True,
        "includeAll": True,
        # Also what has no such label: an installation without Kubernetes has no namespace.
        "allValue": ".*",
        "current": {"text": "All", "value": "$__all"},
    }


def _panels(board: Board) -> Iterator[Json]:
    number, y = 0, 0
    for title, panels in board.rows.items():
        number += 1
        place = {"x": 0, "y": y, "w": COLUMNS, "h": 1}
        yield {
            "type": "row",
            "id": number,
            "title": title,
            "collapsed": False,
            "gridPos": place,
            "panels": [],
        }
        y += 1
        for index, panel in enumerate(panels):
            number += 1
            row, column = divmod(index, COLUMNS // WIDTH)
            at = {"x": column * WIDTH, "y": y + row * HEIGHT, "w": WIDTH, "h": HEIGHT}
            yield _chart(panel, number, at)
        y += HEIGHT * (1 + (len(panels) - 1) // (COLUMNS // WIDTH))


def _chart(panel: Panel, number: int, place: Json) -> Json:
    custom: Json = {"fillOpacity": 20 if panel.stacked else 0, "showPoints": "never"}
    if panel.stacked:
        custom["stacking"] = {"mode": "normal", "group": "A"}
    defaults: Json = {"unit": panel.unit, "min": 0, "custom": custom}
    if panel.highest is not None:
        defaults["max"] = panel.highest
    return {
        "type": "timeseries",
        "id": number,
        "title": panel.title,
        "description": panel.text,
        "datasource": SOURCE,
        "gridPos": place,
        "fieldConfig": {"defaults": defaults, "overrides": []},
        "options": {
            "legend": {
                "displayMode": "list",
                "placement": "bottom",
                "showLegend": True,
                "calcs": [],
            },
            "tooltip": {"mode": "multi", "sort": "desc"},
        },
        "targets": [
            {
                "refId": chr(ord("A") + index),
                "datasource": SOURCE,
                "expr": expression,
                "legendFormat": legend,
                "range": True,
            }
            for index, (legend, expression) in enumerate(panel.queries.items())
        ],
    }
