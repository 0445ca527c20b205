"""The page of what each service keeps and for how long, from the declarations of its tables and
from the streams' own bounds. Used by ``generate_docs.py``."""

from __future__ import annotations

from libs.bus.topology import Limits, streams_of
from libs.service.wiring import Wiring
from libs.store.retention import Retention
from libs.store.tables import COMMON_RETENTION, VERSION_TABLE
from services.allinone.composition import WIRINGS
from services.log_collector.agent.settings import AgentSettings

DAY_SECONDS, HOUR_SECONDS = 86_400.0, 3_600.0
_HEAD = ["| table | rows go | settings |", "| --- | --- | --- |"]


def page() -> str:
    """Tables of every service, streams, and files."""
    lines = [
        "# Retention",
        "",
        "What bounds each table, stream and folder.",
        "[How to change it](../operations.md#what-is-kept-and-for-how-long)",
        "",
        "## Tables that every service has",
        "",
        *_HEAD,
    ]
    first = WIRINGS[0]
    own = {shape.table: shape.retention for shape in common_shapes(first)}
    for name, retention in {**COMMON_RETENTION, **own}.items():
        if name != VERSION_TABLE and retention is not None:
            lines.append(_row(name, retention, first, prefix="SHIFTWORK_<SERVICE>_"))
    for wiring in WIRINGS:
        lines += ["", f"## {wiring.name}", "", *_HEAD]
        for shape in wiring.tables.shapes.values():
            if shape.retention is not None and shape not in common_shapes(wiring):
                lines.append(_row(shape.table, shape.retention, wiring))
    spool_age = _duration(_default(AgentSettings, "keep_seconds"))
    spool = f"`SHIFTWORK_LOG_AGENT_KEEP_SECONDS` ({spool_age})"
    lines += ["", "## Streams", "", "| stream | age at most | bytes at most | when full |"]
    lines.append("| --- | --- | --- | --- |")
    lines += [
        f"| {each.name} | {_duration(each.max_age_s)} | {each.max_bytes:,} | {each.full.value} |"
        for each in streams_of(Limits())
    ]
    lines += [
        "",
        "A durable consumer exists for each service that handles events, and no other.",
        "",
        "## Files",
        "",
        "| folder | files go | settings |",
        "| --- | --- | --- |",
        "| kept output | with its run's row | `SHIFTWORK_LOG_COLLECTOR_KEEP_DAYS` |",
        _files("output on the nodes (launcher)", "launcher", "output_keep_seconds"),
        f"| a log agent's spool | by age after the pod, and by bytes | {spool} |",
        "| refused plans | the newest so many | `SHIFTWORK_SCHEDULER_DUMPS_MAX` |",
    ]
    return "\n".join(lines) + "\n"


def common_shapes(wiring: Wiring) -> tuple[object, ...]:
    """The tables of rows that each schema has, whatever the service."""
    return tuple(
        shape for shape in wiring.tables.shapes.values() if shape.table.startswith("dead_letter")
    )


def _files(what: str, service: str, setting: str) -> str:
    (wiring,) = (each for each in WIRINGS if each.name == service)
    return f"| {what} | by age after the run | {_setting(wiring, setting)} |"


def _row(name: str, retention: Retention, wiring: Wiring, *, prefix: str | None = None) -> str:
    text = retention.text
    if retention.parent is not None:
        text = f"with `{wiring.tables.shape(retention.parent).table}`: {text}"
    settings = ", ".join(_setting(wiring, each, prefix) for each in retention.settings)
    return f"| `{name}` | {text} | {settings} |"


def _setting(wiring: Wiring, name: str, prefix: str | None = None) -> str:
    own = str(wiring.settings.model_config.get("env_prefix", ""))
    value = _default(wiring.settings, name)
    shown = _duration(value) if name.endswith("_seconds") else f"{value:,.15g}"
    return f"`{own if prefix is None else prefix}{name.upper()}` ({shown})"


def _default(settings: type, name: str) -> float:
    return settings.model_fields[name].default  # type: ignore[attr-defined]


def _duration(seconds: float) -> str:
    if seconds >= DAY_SECONDS:
        return f"{seconds / DAY_SECONDS:g} d"
    return f"{seconds / HOUR_SECONDS:g} h" if seconds >= HOUR_SECONDS else f"{seconds / 60:g} min"
