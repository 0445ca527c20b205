"""The dashboards ask for metrics of the catalogue, and show what operators have to see."""

from __future__ import annotations

import re
from collections.abc import Iterator

from tools import dashboards
from tools.metrics_page import catalogue, series_of

_NAME = re.compile(r"\b(?:shiftwork|DCGM)_\w+")
_MATCHER = re.compile(r"(\w+)=~?\"")


def expressions() -> Iterator[str]:
    for board in dashboards.BOARDS:
        for panels in board.rows.values():
            for panel in panels:
                yield from panel.queries.values()


def test_every_query_is_about_metrics_of_the_catalogue() -> None:
    used = {name for each in expressions() for name in _NAME.findall(each)}
    assert used - series_of(catalogue()) == set()


def test_every_matcher_is_a_label_of_its_metric() -> None:
    for each in expressions():
        for name, matchers in re.findall(r"((?:shiftwork|DCGM)_\w+)\{([^}]*)\}", each):
            metric = catalogue().get(name) or catalogue()[re.sub("_(bucket|count|sum)$", "", name)]
            # Prometheus adds the namespace.
            assert {*_MATCHER.findall(matchers)} <= {*metric.labels, "namespace"}, each


def test_operators_see_every_metric_that_a_defect_or_a_bottleneck_shows_in() -> None:
    shown = {name for each in expressions() for name in _NAME.findall(each)}
    assert {
        *("shiftwork_gpus", "shiftwork_held_gpu_idle_seconds_total"),
        *("shiftwork_queue_wait_seconds_bucket", "shiftwork_preemptions_total"),
        *("shiftwork_preemption_checkpoint_seconds_bucket", "shiftwork_lost_gpu_seconds_total"),
        *("shiftwork_outbox_waiting", "shiftwork_outbox_oldest_age_seconds"),
        *("shiftwork_consumer_waiting", "shiftwork_scheduler_decide_seconds_bucket"),
    } <= shown


def test_panels_do_not_overlap_and_have_numbers_of_their_own() -> None:
    for board in dashboards.BOARDS:
        panels = dashboards.dashboard(board)["panels"]
        assert len({each["id"] for each in panels}) == len(panels)
        cells = [
            (x, y)
            for each in panels
            for place in [each["gridPos"]]
            for x in range(place["x"], place["x"] + place["w"])
            for y in range(place["y"], place["y"] + place["h"])
        ]
        assert len(set(cells)) == len(cells)
        assert max(x for x, _ in cells) < dashboards.COLUMNS
