"""Every table of every service says what bounds it, and the service does what it says."""

from __future__ import annotations

from pathlib import Path
from random import Random
from typing import Any, cast

import pytest

from libs.service.clock import SystemClock
from libs.service.definition import Service
from libs.service.prune import PruneRule, Pruning
from libs.service.settings import BaseServiceSettings
from libs.service.wiring import Wiring
from libs.store.port import Store
from libs.store.rows import Shape
from libs.store.tables import COMMON_RETENTION, Tables, table
from services.allinone.composition import WIRINGS
from services.launcher.runtimes.fake import FakeRuntime
from services.launcher.runtimes.fake_cluster import FakeCluster
from services.log_collector.archives.memory import MemoryArchive
from services.log_collector.sources.memory import MemorySource
from tests.kit.memory import MemoryPlatform
from tests.libs.store.test_tables import Row

OF_SERVICE = {wiring.name: wiring for wiring in WIRINGS}
HERE = Path(__file__)
SETTINGS: dict[str, dict[str, Any]] = {
    "launcher": {"run_token_key_file": HERE},
    "log_collector": {"runs_dir": Path("/nowhere"), "logs_dir": Path("/nowhere")},
}


def no_nodes() -> FakeCluster:
    nobody = cast("Any", None)
    return FakeCluster((), platform=nobody, script_of=nobody, now=SystemClock().now, rng=Random(1))


def built(
    wiring: Wiring, platform: MemoryPlatform, store: Store | None = None, **options: Any
) -> tuple[Service, BaseServiceSettings]:
    """A service as its own ``main.py`` builds it, and its settings."""
    replacements: dict[str, dict[str, Any]] = {
        "launcher": {"runtime": FakeRuntime(no_nodes())},
        "log_collector": {"source": MemorySource(), "archive": MemoryArchive()},
    }
    own = {**SETTINGS.get(wiring.name, {}), **options}
    settings = wiring.settings(database_url="-", nats_url="-", **own)
    others = replacements.get(wiring.name, {})
    return platform.build(wiring, settings, store=store, **others), settings


def rules_of(wiring: Wiring) -> list[PruneRule]:
    """The rules that a service built by its own ``main.py`` prunes by."""
    service, _ = built(wiring, MemoryPlatform())
    steps = (getattr(loop.step, "__self__", None) for loop in service.loops)
    return [rule for each in steps if isinstance(each, Pruning) for rule in each.old]


def undeclared(tables: Tables) -> list[str]:
    return [shape.table for shape in tables.shapes.values() if shape.retention is None]


@pytest.mark.parametrize("name", OF_SERVICE)
def test_every_table_declares_what_bounds_it(name: str) -> None:
    assert undeclared(OF_SERVICE[name].tables) == []


def test_a_table_without_a_declaration_is_found() -> None:
    assert undeclared(Tables("thing", table(Row, "row", key="row_id"))) == ["row"]


@pytest.mark.parametrize("name", OF_SERVICE)
def test_declarations_name_settings_of_the_service_and_tables_with_bounds(name: str) -> None:
    wiring = OF_SERVICE[name]
    shapes = wiring.tables.shapes
    declared = [each.retention for each in shapes.values()] + list(COMMON_RETENTION.values())
    for retention in declared:
        assert retention is not None
        assert {*retention.settings} <= {*wiring.settings.model_fields}, retention
    for shape in shapes.values():
        seen: set[type[Any]] = set()
        at: Shape = shape
        while at.retention is not None and (parent := at.retention.parent) is not None:
            assert parent in shapes, f"{at.table} goes with a row of another service"
            assert parent not in seen, f"{shape.table}: rows that go with one another"
            seen.add(parent)
            at = shapes[parent]


@pytest.mark.parametrize("name", OF_SERVICE)
def test_the_service_prunes_what_its_tables_declare_and_nothing_else(name: str) -> None:
    wiring = OF_SERVICE[name]
    rules = [rule.what for rule in rules_of(wiring)]
    declared = [
        rule
        for shape in wiring.tables.shapes.values()
        if shape.retention is not None
        for rule in shape.retention.rules
    ]
    assert {*rules} == {*declared}
    assert len(rules) == len({*rules})
