from __future__ import annotations

import re
from html.parser import HTMLParser
from xml.etree import ElementTree as ET

import pytest

from services.scheduler.domain.model.group_policy import VirtualCluster
from services.scheduler.lab.generator import generate
from services.scheduler.lab.report import plot
from services.scheduler.lab.report.curves import cdf, curves
from services.scheduler.lab.report.page import COLUMNS, page
from services.scheduler.lab.results import Private
from services.scheduler.lab.run_options import Options
from services.scheduler.lab.workload import Cluster, Job, Workload, private_partitions, uniform
from tests.services.scheduler.lab.drivers import drive

EVIL = "<script>alert('&')</script>\"x"


class Tags(HTMLParser):
    VOID = ("meta", "input", "br")

    def __init__(self) -> None:
        super().__init__()
        self.open: list[str] = []
        self.seen: list[tuple[str, dict[str, str | None]]] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.seen.append((tag, dict(attrs)))
        if tag not in self.VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.seen.append((tag, dict(attrs)))

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag


def workload(jobs_max: int = 60) -> Workload:
    clusters = (VirtualCluster(EVIL, 2, teams=(EVIL,)), VirtualCluster("b", 1, teams=("b",)))
    jobs = [
        Job(number, 100.0 * number, 50.0 + 400.0 * (number % 7), 1 + number % 3, None, EVIL, team)
        for number, team in enumerate((EVIL, "b", "c") * 20)
    ]
    group = uniform("default", 4, 8, clusters)
    return Workload(EVIL, jobs[:jobs_max], Cluster((group,)), skipped=1, notes=(EVIL,))


def made(policies: tuple[str, ...], full: Workload | None = None) -> str:
    full, options = full or workload(), Options()
    partitions = private_partitions(full)
    runs = [
        curves(
            drive(full, policy, options, print),
            full,
            {
                vc: Private(alone, drive(alone, policy, options, print))
                for vc, alone in partitions.items()
            },
        )
        for policy in policies
    ]
    return page(full, options, runs)


def test_the_report_is_whole_and_loads_nothing() -> None:
    text = made(("srpt", "fifo", "easy"))
    tags = Tags()
    tags.feed(text)
    assert tags.open == []
    names = {tag for tag, _ in tags.seen}
    assert not {"script", "img", "link", "iframe", "object"} & names
    assert not re.search(r"https?://|url\(|@import|javascript:", text)
    assert not any(
        name in {"src", "href"} or name.startswith("on")
        for _, attributes in tags.seen
        for name in attributes
    )
    pictures = re.findall(r"<svg viewBox.*?</svg>", text, re.DOTALL)
    assert len(pictures) > 10
    for picture in pictures:
        root = ET.fromstring(picture)
        assert root.get("aria-label") or root.get("aria-hidden") == "true"


def test_few_jobs_are_no_comparison() -> None:
    for jobs, words in ((1, "One job is too few"), (29, "29 jobs are too few")):
        text = made(("fifo", "easy"), workload(jobs))
        assert f"{words} to compare policies." in text
        assert 'class="best"' not in text
        assert "sooner" not in text
        assert "is bold" not in text
    full = made(("fifo", "easy"))
    assert 'class="best"' in full
    assert "The best value of each column is bold." in full


def test_a_cell_of_a_duration_has_a_unit_also_if_it_is_0() -> None:
    (waits,) = [column for column in COLUMNS if column.head == "mean wait"]
    assert waits.texts([{"mean_wait_s": 0.0}, {"mean_wait_s": 90.0}]) == ["0 s", "1.50 min"]


def test_policies_that_do_the_same_are_not_ranked() -> None:
    full = workload()
    alone = Workload("alone", full.jobs, Cluster((uniform("default", 400, 8, ()),)))
    text = made(("fifo", "easy"), alone)
    assert "as under <i>easy</i>" in text
    assert 'class="best"' not in text
    assert "times sooner" not in text


@pytest.mark.parametrize(
    ("seconds", "words"),
    [
        ((3.83 * 3600, 10.1 * 3600, 4.41 * 3600), ["3.83 h", "10.1 h", "4.41 h"]),
        ((2898.0, 16.8 * 3600, 10.3 * 3600), ["0.81 h", "16.8 h", "10.3 h"]),
        ((1.93 * 86400, 35.3 * 3600), ["1.93 d", "1.47 d"]),
        ((30.0, 40 * 3600.0), ["0.50 min", "2,400.0 min"]),
        ((0.0, 90.0, None), ["0", "1.50 min", "\u2013"]),
        ((None, 0.0), ["\u2013", "0"]),
    ],
)
def test_durations_of_one_column_have_one_unit(
    seconds: tuple[float | None, ...], words: list[str]
) -> None:
    word = plot.spans(seconds)
    assert [word(each) for each in seconds] == words


def test_names_are_escaped() -> None:
    text = made(("fifo", "easy"))
    assert EVIL not in text
    assert "<script" not in text
    assert "&lt;script&gt;" in text


def test_every_policy_and_part_is_there() -> None:
    text = made(("fifo", "backfill", "easy", "las", "rotation", "srpt"))
    for policy in ("fifo", "backfill", "easy", "las", "rotation", "srpt"):
        assert f'<th scope="row">{policy}</th>' in text
    headings = re.findall(r"<h2>(.*?)</h2>", text)
    assert headings == [
        "All policies",
        "Over time",
        "Completion time by size",
        "Waiting time by size",
        "Between users",
        "What preemption costs",
        "Virtual clusters: shared and alone",
        "About the trace",
        "What the terms mean",
    ]


def test_a_report_of_a_single_policy_has_no_comparison() -> None:
    small = generate(Cluster((uniform("default", 4, 8),)), 5, 1)
    run = curves(drive(small, "fifo", Options(), print), small)
    text = page(small, Options(), [run])
    assert "sooner" not in text
    assert "Virtual clusters" not in text


def test_spans_and_numbers() -> None:
    spans = [0, 0.25, 1, 59, 90, 3600, 5400, 86_400, 200_000, 1e8, None]
    assert [plot.span(each) for each in spans] == [
        "0",
        "0.25 s",
        "1 s",
        "59 s",
        "1.5 min",
        "60 min",
        "1.5 h",
        "24 h",
        "2.31 d",
        "1157 d",
        "\u2013",
    ]
    assert [plot.number(each) for each in (0.456, 12.34, 1204.0)] == ["0.46", "12.3", "1,204"]
    assert plot.percent(0.934) == "93.4 %"


@pytest.mark.parametrize("most", [1e-6, 0.3, 1.0, 7.0, 99.0, 12_345.0, 3e9])
def test_axes_cover_what_they_show(most: float) -> None:
    for axis in (plot.linear(0.0, most, ""), plot.log_spans(most, ""), plot.log_numbers(most, "")):
        assert axis.most >= most
        assert 2 <= len(axis.ticks) <= 12
        parts = [axis.part(at) for at, _ in axis.ticks]
        assert parts == sorted(parts)
        assert (parts[0], parts[-1]) == (0.0, pytest.approx(1.0))
    assert len(plot.time_axis(most, "").ticks) >= 1


def test_a_distribution_keeps_its_ends() -> None:
    points = cdf([float(value) for value in range(1, 1001)])
    assert len(points) <= 160
    assert (points[0], points[-1]) == ((1.0, 0.001), (1000.0, 1.0))
    assert all(part == value / 1000 for value, part in points)
    assert cdf([]) == []
