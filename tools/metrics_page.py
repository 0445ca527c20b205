"""The catalogue of metrics, as a page: docs/generated/metrics.md."""

from __future__ import annotations

from collections.abc import Mapping

from libs.service.metrics import CATALOGUE, LABELS, Metric
from services.allinone.composition import WIRINGS
from services.launcher.runtimes.kubernetes import connect, pod_sampler, reflector
from services.log_collector.agent import spool

# What imports every module that declares a metric: the services, and the parts that run elsewhere.
DECLARING = (*WIRINGS, connect, pod_sampler, reflector, spool)
EVERY = "every service"
_HEAD = ("| metric | type | unit | labels | |", "| --- | --- | --- | --- | --- |")


def catalogue() -> dict[str, Metric]:
    """Every metric of the platform by its name."""
    assert DECLARING
    return CATALOGUE


def series_of(metrics: Mapping[str, Metric]) -> set[str]:
    """The names under which queries find these metrics."""
    ends = {"histogram": ("_bucket", "_count", "_sum")}
    return {f"{name}{end}" for name, each in metrics.items() for end in ends.get(each.kind, ("",))}


def page() -> str:
    """What exports which metric, and what the labels are."""
    lines = [
        "# Metrics",
        "",
        "What the processes of the platform show on `/metrics`, by the part that shows it. With",
        "`shiftwork up` all parts share one address",
        "([how to scrape it](../monitoring.md#prometheus-and-grafana)).",
        "",
        "A counter begins at 0 in each process: use `rate` and `increase`, which know restarts.",
        "Only the process that leads a service shows what is about the cluster: sum over all.",
        "A setting that switches a metric stands behind it.",
    ]
    found = catalogue().values()
    parts = sorted({each.part for each in found} - {EVERY})
    for part in (EVERY, *parts):
        lines += ["", f"## {part}", "", *_HEAD]
        for each in sorted(found, key=lambda each: each.name):
            if each.part == part:
                labels = ", ".join(f"`{label}`" for label in each.labels)
                setting = f" (`{each.setting}`)" if each.setting else ""
                row = (f"`{each.name}`", each.kind, each.unit, labels, each.text + setting)
                lines.append(f"| {' | '.join(row)} |")
    used = {label for each in found for label in each.labels}
    lines += ["", "## Labels", "", "The number of values is bounded. No user is a label.", ""]
    lines += ["| label | values |", "| --- | --- |"]
    lines += [f"| `{name}` | {text} |" for name, text in LABELS.items() if name in used]
    return "\n".join(lines) + "\n"
