"""The catalogue of metrics: each is declared once, where it is counted, through ``Metrics``.

A declaration registers the metric with prometheus_client and enters it in ``CATALOGUE``, of which
``tools/metrics_page.py`` makes docs/generated/metrics.md. A name that is against Prometheus'
conventions and a label that is not in ``LABELS`` are refused when the module is imported.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from prometheus_client import Counter, Gauge, Histogram
from prometheus_client.core import GaugeMetricFamily

# Every label, and what bounds the number of its values. A task or a user is none: each would be a
# series of its own, for ever.
LABELS: dict[str, str] = {
    "service": "a service of the platform",
    "consumer": "a service of the platform, by its durable on the stream of events",
    "version": "the version of the platform",
    "python": "the version of Python",
    "type": "a type of message",
    "kind": "a kind of rows, objects or decisions",
    "outcome": "`done` or `refused`; of spans `exported`, `failed` or `dropped`",
    "part": "a loop of the service, its relay or its consumer",
    "loop": "a loop of the service",
    "what": "a kind of rows that are deleted by age",
    "why": "a cause, of a fixed list",
    "channel": "`webhook` or `mail`",
    "fault": "a check of plans",
    "cause": "`preemption` or `failure`",
    "reason": "a reason code, such as `preempted_by` or `node_drained`",
    "group": "a node group; `(other)` for groups without nodes",
    "priority": "a priority",
    "state": "a state",
    "method": "an HTTP method",
    "route": "a route's template, or `none`",
    "status": "an HTTP status",
    "verb": "a verb of the Kubernetes API",
    "answer": "a status of the Kubernetes API",
    "node": "a node",
    "task": "a running task; up to a number that the site sets, by default none",
    # DCGM's.
    "gpu": "a GPU's index on its node",
    "UUID": "a GPU",
    "modelName": "a model of GPUs",
    "Hostname": "a node's host name",
}
# Units by the name's end, before ``_total``. Prometheus has base units: no milliseconds.
UNITS = {
    "gpu_seconds": "GPU-seconds",
    "bytes_per_second": "bytes per second",
    "seconds": "seconds",
    "bytes": "bytes",
    "ratio": "0 to 1",
    "cores": "processors",
    "info": "",
}
_NOT_BASE = frozenset(
    [
        "ms",
        "milliseconds",
        "microseconds",
        "minutes",
        "hours",
        "days",
        "percent",
        "kb",
        "mb",
        "gb",
        "kib",
        "mib",
        "gib",
        "kilobytes",
    ]
)
_NAME = re.compile(r"shiftwork(_[a-z][a-z0-9]*)+")

Kind = Literal["counter", "gauge", "histogram"]


@dataclass(frozen=True, slots=True)
class Metric:
    """One metric as it is declared."""

    name: str
    kind: Kind
    text: str
    labels: tuple[str, ...]
    # What exports it: ``every service``, a service, or a part of one.
    part: str
    # A settings's field without which it is not exported; empty: it always is.
    setting: str = ""

    @property
    def unit(self) -> str:
        """The unit, from the name; ``GPUs``, ``events`` and the like stand in the text."""
        base = self.name.removesuffix("_total")
        return next((unit for end, unit in UNITS.items() if base.endswith(f"_{end}")), "")


# By name.
CATALOGUE: dict[str, Metric] = {}


@dataclass(frozen=True, slots=True)
class GaugeFamily:
    """A gauge of which a collector computes the samples when Prometheus asks."""

    metric: Metric

    def empty(self) -> GaugeMetricFamily:
        """The family of one scrape, without samples."""
        return GaugeMetricFamily(self.metric.name, self.metric.text, labels=self.metric.labels)


@dataclass(frozen=True, slots=True)
class Metrics:
    """Declares the metrics of one part of the platform, named as the catalogue shows it.

    ValueError for a name against the conventions, a label that is not in ``LABELS``, or a metric
    that is declared already.
    """

    part: str

    def counter(self, name: str, text: str, labels: Sequence[str] = ()) -> Counter:
        """Something that only grows; it begins at 0 in each process."""
        self._enter(name, "counter", text, labels)
        return Counter(name, text, labels)

    def gauge(self, name: str, text: str, labels: Sequence[str] = ()) -> Gauge:
        """Something as it is now."""
        self._enter(name, "gauge", text, labels)
        return Gauge(name, text, labels)

    def histogram(
        self,
        name: str,
        text: str,
        labels: Sequence[str] = (),
        *,
        buckets: Sequence[float] = Histogram.DEFAULT_BUCKETS,
    ) -> Histogram:
        """How often something had which size."""
        self._enter(name, "histogram", text, labels)
        return Histogram(name, text, labels, buckets=buckets)

    def family(
        self, name: str, text: str, labels: Sequence[str] = (), *, setting: str = ""
    ) -> GaugeFamily:
        """A gauge whose samples a collector computes."""
        return GaugeFamily(self._enter(name, "gauge", text, labels, setting))

    def foreign(
        self, name: str, text: str, labels: Sequence[str] = (), *, setting: str = ""
    ) -> GaugeFamily:
        """A gauge under another project's name and unit, for that project's dashboards."""
        return GaugeFamily(
            self._put(Metric(name, "gauge", text, tuple(labels), self.part, setting))
        )

    def _enter(
        self, name: str, kind: Kind, text: str, labels: Sequence[str], setting: str = ""
    ) -> Metric:
        problem = problem_of(name, kind)
        if problem:
            raise ValueError(f"{name}: {problem}")
        return self._put(Metric(name, kind, text, tuple(labels), self.part, setting))

    def _put(self, metric: Metric) -> Metric:
        unknown = [each for each in metric.labels if each not in LABELS]
        if unknown:
            raise ValueError(f"{metric.name}: LABELS has no bound for {', '.join(unknown)}")
        if metric.name in CATALOGUE:
            raise ValueError(f"{metric.name} is declared twice")
        CATALOGUE[metric.name] = metric
        return metric


def problem_of(name: str, kind: Kind) -> str:
    """What is against Prometheus' conventions in a name; empty: nothing."""
    words = name.split("_")
    if not _NAME.fullmatch(name):
        return "a name is shiftwork_ and words in lower case"
    if (kind == "counter") is not name.endswith("_total"):
        return "counters end in _total, and nothing else does"
    if words[-1] in ("count", "sum", "bucket", "gauge", "counter", "histogram"):
        return f"_{words[-1]} belongs to Prometheus"
    if found := _NOT_BASE.intersection(words):
        return f"{min(found)} is not a base unit"
    if kind == "histogram" and not name.endswith(("_seconds", "_bytes")):
        return "a histogram's name ends in its unit"
    return ""
