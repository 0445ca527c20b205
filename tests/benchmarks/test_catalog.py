"""Benchmarks are found by name and alias, and the committed records are theirs."""

from __future__ import annotations

import dataclasses
import json
import subprocess
import sys
from pathlib import Path

import pytest

from benchmarks import catalog
from benchmarks.fake_service import stand_ins
from benchmarks.report import Goal, Report, machine
from tools import benchmark_page

ROOT = Path(__file__).resolve().parents[2]
ALIASES = [
    *("p1", "p2", "p3", "p4", "p5", "p5-kubernetes", "p6", "p10", "p11"),
    *("kube-large", "usage", "series"),
]


@pytest.mark.parametrize("alias", ALIASES)
def test_the_old_names_are_aliases(alias: str) -> None:
    assert catalog.named(alias).name in catalog.NAMES


def test_an_unknown_name_is_answered_with_those_that_exist() -> None:
    done = subprocess.run(
        [sys.executable, "-m", "benchmarks", "p99"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 1
    assert "'p99'" in done.stderr
    assert "submit_to_running (p1)" in done.stderr


def test_every_module_with_a_question_is_in_the_catalog() -> None:
    folder = ROOT / "benchmarks"
    declared = {
        path.stem for path in folder.glob("*.py") if "\nBENCHMARK = Benchmark(" in path.read_text()
    }
    assert declared == set(catalog.NAMES)


@pytest.mark.parametrize("name", catalog.NAMES)
def test_a_record_names_its_machine_and_nothing_else_about_the_place(name: str) -> None:
    kept = catalog.record(name)
    if kept is None:
        pytest.skip("never recorded")
    assert set(kept.machine) == {"cores", "memory_gib", "cpu"} == set(machine())
    assert set(kept.load) == {"least", "most"}
    assert kept.measured


def test_no_record_lies_beside_the_catalog() -> None:
    assert {path.stem for path in catalog.RESULTS.glob("*.json")} <= set(catalog.NAMES)


def test_the_page_compares_a_record_with_the_current_goals(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(catalog, "RESULTS", tmp_path)
    asked = catalog.benchmark("start_and_memory")
    kept = catalog.Record(
        title="a run",
        measured={"restart_s": 1.1, "idle_pss_mib": 500},
        floor={"imports_s": 0.4},
        machine={"cores": 2, "memory_gib": 8.0, "cpu": None},
        load={"least": None, "most": None},
        commit=None,
        date=None,
    )
    catalog.keep(asked.name, kept)
    assert catalog.record(asked.name) == kept
    lines = benchmark_page.page().splitlines()
    place = "2 cores, 8.0 GiB, CPU unknown | unknown"
    assert f"|  | restart to ready ≤ 1.2 s | 1.1 s | 0.4 s | {place} | yes |" in lines
    assert f"|  | memory, idle ≤ 220 MiB | 500 MiB |  | {place} | **no** |" in lines
    assert any("100,000 queued ≤ 100 MiB | not measured" in line for line in lines)
    assert any(line.endswith("a run; date unknown, load unknown.") for line in lines)


def test_the_last_line_of_a_benchmark_is_one_json_object(
    capsys: pytest.CaptureFixture[str],
) -> None:
    asked = catalog.benchmark("start_and_memory")
    goals = (
        Goal(figure="restart_s", label="restart", at_most=1.2),
        Goal(figure="rate", label="rate", at_least=5.0),
    )
    report = Report(dataclasses.replace(asked, goals=goals), "a run", goals)
    report.measured |= {"restart_s": 2.0, "rate": 9}
    report.publish()
    line = json.loads(capsys.readouterr().out.splitlines()[-1])
    assert (line["benchmark"], line["alias"]) == ("start_and_memory", "p10")
    assert line["goal"] == {"restart_s_at_most": 1.2, "rate_at_least": 5.0}
    assert line["met"] is False
    assert line["misses"] == ["restart_s 2.0 is not <= 1.2"]


def test_without_groups_nothing_takes_the_place_of_this_machine() -> None:
    assert stand_ins("launcher", {}) == {}
    assert set(stand_ins("launcher", {"a": 1})) == {"runtime"}
    assert set(stand_ins("log_collector", {"a": 1})) == {"source"}
    assert stand_ins("quota", {"a": 1}) == {}
