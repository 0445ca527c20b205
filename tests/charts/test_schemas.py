"""The schemas of the charts' values are strict, described, and the same everywhere."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import pytest
import yaml

from tests.charts.charts import CHARTS, SERVERS, SERVICES, UMBRELLA, Helm, HelmError
from tools.chart_schemas import schemas

pytestmark = pytest.mark.kubernetes

ALL = (*SERVICES, *SERVERS, UMBRELLA)


def test_the_schemas_are_what_values_and_settings_give() -> None:
    stale = [str(path) for path, text in schemas().items() if path.read_text() != text]
    assert stale == [], "run `make gen`"


def test_defaults_of_global_are_those_that_the_umbrella_shows() -> None:
    template = (CHARTS / "common" / "templates" / "_defaults.tpl").read_text()
    text = template.partition('{{- define "common.defaults" -}}')[2].partition("{{- end -}}")[0]
    shown = yaml.safe_load((CHARTS / UMBRELLA / "values.yaml").read_text())["global"]
    assert yaml.safe_load(text) == shown


def objects_of(schema: dict[str, Any], at: str = "") -> Iterator[tuple[str, dict[str, Any]]]:
    """Every schema of an object with named parts."""
    if "properties" in schema:
        yield at, schema
        for name, part in schema["properties"].items():
            yield from objects_of(part, f"{at}/{name}")


@pytest.mark.parametrize("chart", ALL)
def test_unknown_keys_are_refused_everywhere(chart: str) -> None:
    schema = json.loads((CHARTS / chart / "values.schema.json").read_text())
    lax = [at for at, part in objects_of(schema) if part.get("additionalProperties") is not False]
    assert lax == []


@pytest.mark.parametrize("chart", ALL)
def test_the_schema_accepts_the_defaults_of_the_chart(helm: Helm, chart: str) -> None:
    assert helm.template(chart, {})


WRONG: tuple[tuple[dict[str, Any], str], ...] = (
    ({"gatewy": {"replicas": 2}}, "gatewy"),
    ({"gateway": {"replica": 2}}, "replica"),
    ({"gateway": {"replicas": "two"}}, "replicas"),
    ({"global": {"image": {"pullPolicy": "Sometimes"}}}, "pullPolicy"),
    ({"global": {"nats": {"url": "nats://me:secret@host:4222"}}}, "/global/nats/url"),
    ({"global": {"podPolicy": {"gpu_resorce": "x"}}}, "gpu_resorce"),
    ({"global": {"podPolicy": {"shm_bytes": "2Gi"}}}, "shm_bytes"),
    ({"scheduler": {"settings": {"tick_second": 1}}}, "tick_second"),
    ({"scheduler": {"settings": {"tick_seconds": 0}}}, "tick_seconds"),
    # A value must not repeat what the chart sets itself: passwords above all.
    ({"scheduler": {"settings": {"database_url": "postgresql://a:b@c/d"}}}, "database_url"),
    ({"nats": {"replicas": 2}}, "/replicas"),
    ({"nats": {"persistence": {"size": "20 GB"}}}, "/persistence/size"),
)


@pytest.mark.parametrize(("values", "named"), WRONG, ids=[named for _, named in WRONG])
def test_a_wrong_value_is_refused_by_its_place(
    helm: Helm, values: dict[str, Any], named: str
) -> None:
    with pytest.raises(HelmError, match=named):
        helm.template(UMBRELLA, values)


IMPOSSIBLE: tuple[tuple[dict[str, Any], str], ...] = (
    ({"nats": {"enabled": False}}, "set global.nats.url"),
    ({"global": {"nats": {"url": "nats://n:4222"}}}, "set nats.enabled=false"),
    (
        {"nats": {"enabled": False}, "global": {"nats": {"url": "nats://n:4222"}}},
        "set global.secrets.nats",
    ),
    (
        {"global": {"nats": {"url": "nats://n", "caConfigMap": "ca"}}, "nats": {"enabled": False}},
        "write tls://HOST:PORT in global.nats.url",
    ),
    ({"postgres": {"enabled": False}}, "set global.database.host"),
    ({"global": {"database": {"host": "db"}}}, "set postgres.enabled=false"),
    ({"global": {"tasks": {"namespace": "shiftwork"}}}, "must not share a namespace"),
    ({"log-collector": {"replicas": 2}}, "need archive.accessMode ReadWriteMany"),
)


@pytest.mark.parametrize(("values", "fix"), IMPOSSIBLE, ids=[fix for _, fix in IMPOSSIBLE])
def test_what_cannot_work_together_is_refused_with_the_fix(
    helm: Helm, values: dict[str, Any], fix: str
) -> None:
    with pytest.raises(HelmError, match=fix):
        helm.template(UMBRELLA, values)
