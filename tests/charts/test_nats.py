"""The NATS server of the chart: its configuration is real, and holds each service to its own."""

from __future__ import annotations

import base64
import contextlib
import os
import re
import subprocess
import time
from collections.abc import Generator
from pathlib import Path
from typing import Any
from urllib.error import URLError
from urllib.request import urlopen

import pytest

from libs.bus import provision
from libs.bus.connection import Credentials
from libs.bus.port import BusDeniedError
from libs.service.wiring import topology
from services.allinone import nats_config
from services.allinone.composition import WIRINGS
from services.allinone.embedded.nats import program
from services.allinone.service_processes import free_port
from tests.charts.charts import CHARTS, UMBRELLA, Helm, HelmError, Json, named
from tests.kit.monitoring import check_readers

pytestmark = pytest.mark.kubernetes

# The server reads them as numbers, lists or references unless they are quoted.
PASSWORDS = ("123", "8m", "1e5", "true", "[a]", "$HOME", "a-b_c.d", "p" * 40, "0x1f")


def server(objects: list[Json]) -> tuple[str, dict[str, str]]:
    """The configuration, and the environment as the kubelet would make it."""
    text = named(objects, "ConfigMap", "shiftwork-nats")["data"]["nats.conf"]
    pod = named(objects, "StatefulSet", "shiftwork-nats")["spec"]["template"]["spec"]
    (container,) = pod["containers"]
    # Where the chart makes no Secret, one's own has any password in it.
    made = [
        each
        for each in objects
        if (each["kind"], each["metadata"]["name"]) == ("Secret", "shiftwork-nats")
    ]
    environment: dict[str, str] = {}
    for number, each in enumerate(container["env"]):
        if "value" in each:
            environment[each["name"]] = re.sub(
                r"\$\((\w+)\)", lambda found: environment[found[1]], each["value"]
            )
        elif "fieldRef" in each["valueFrom"]:
            environment[each["name"]] = "shiftwork-nats-0"
        elif made:
            key = each["valueFrom"]["secretKeyRef"]["key"]
            environment[each["name"]] = base64.b64decode(made[0]["data"][key]).decode()
        else:
            environment[each["name"]] = PASSWORDS[number % len(PASSWORDS)]
    return text, environment


@contextlib.contextmanager
def running(text: str, environment: dict[str, str], folder: Path) -> Generator[str]:
    """A server with this configuration, on free ports of this machine; its URL."""
    config, port, monitor = folder / "nats.conf", free_port(), free_port()
    assert text.count('"/data"') == 1
    config.write_text(text.replace('"/data"', f'"{folder / "store"}"'))
    with (folder / "log").open("w") as log:
        process = subprocess.Popen(
            [
                *(program(), "--config", config, "--addr", "127.0.0.1"),
                *("--port", str(port), "--http_port", str(monitor)),
            ],
            env={**os.environ, **environment},
            stderr=log,
        )
    try:
        for _ in range(200):
            assert process.poll() is None, (folder / "log").read_text()
            with contextlib.suppress(URLError, OSError):
                # The probe of the chart.
                urlopen(f"http://127.0.0.1:{monitor}/healthz?js-server-only=true", timeout=1)
                break
            time.sleep(0.05)
        else:
            raise AssertionError((folder / "log").read_text())
        yield f"nats://127.0.0.1:{port}"
    finally:
        process.terminate()
        process.wait(10)


def test_users_are_those_that_the_services_declare() -> None:
    kept = (CHARTS / "nats" / "files" / "accounts.conf").read_text()
    assert kept == nats_config.accounts_template(WIRINGS), "run `make gen`"


@pytest.mark.parametrize("names", [[], ["grafana", "audit_2"]])
def test_the_chart_gives_each_user_what_the_platform_declares(helm: Helm, names: list[str]) -> None:
    text, environment = server(helm.template(UMBRELLA, {"nats": {"monitoringUsers": names}}))
    users = nats_config.monitoring_users(names)
    wanted = nats_config.accounts_block(WIRINGS, users)
    assert sorted(_exports(text)) == sorted(_exports(wanted))
    for user in users:
        (account,) = re.findall(rf"^  {user} \{{$.*?^  \}}$", text, re.MULTILINE | re.DOTALL)
        assert account in wanted
        assert environment[f"SECRET_{user.upper()}"]
    if not names:
        assert wanted.strip() in text


def _exports(text: str) -> list[tuple[str, str]]:
    """Each exported subject with each account that may use it."""
    return [
        (subject, account)
        for subject, accounts in re.findall(
            r'"(?:service|stream)": "(.*?)", "accounts": \[(.*?)\]', text
        )
        for account in accounts.split(", ")
    ]


async def test_monitoring_users_of_the_values_read_events_and_do_nothing_else(
    helm: Helm, tmp_path: Path
) -> None:
    names = ["grafana", "audit_2"]
    objects = helm.template(
        UMBRELLA, {"nats": {"monitoringUsers": names, "monitoringFrom": [{"podSelector": {}}]}}
    )
    text, environment = server(objects)
    (job,) = [
        each
        for each in objects
        if each["kind"] == "Job" and each["metadata"]["name"].startswith("shiftwork-provision-")
    ]
    settings = job["spec"]["template"]["spec"]["containers"][0]["env"]
    assert {"name": "SHIFTWORK_PROVISION_MONITORING_USERS", "value": "grafana audit_2"} in settings
    policy = named(objects, "NetworkPolicy", "shiftwork-nats")["spec"]["ingress"]
    assert {"podSelector": {}} in [peer for rule in policy for peer in rule["from"]]

    def credentials(user: str) -> Credentials:
        return Credentials(user, environment[f"SECRET_{user.upper()}"])

    readers = nats_config.monitoring_users(names)
    with running(text, environment, tmp_path) as url:
        admin = credentials("admin")
        await provision.provision([url], admin, topology(WIRINGS, monitoring=readers))
        await check_readers(
            url,
            credentials("submit"),
            credentials("monitor"),
            [credentials(each) for each in readers],
        )
        with pytest.raises(BusDeniedError):
            await provision.enter([url], Credentials(readers[0], "wrong"))


def test_without_monitoring_users_nobody_else_reaches_the_server(helm: Helm) -> None:
    values = {"nats": {"monitoringFrom": [{"podSelector": {}}]}}
    objects = helm.template(UMBRELLA, values)
    policy = named(objects, "NetworkPolicy", "shiftwork-nats")["spec"]["ingress"]
    assert {"podSelector": {}} not in [peer for rule in policy for peer in rule["from"]]
    assert "monitoring_" not in named(objects, "ConfigMap", "shiftwork-nats")["data"]["nats.conf"]


@pytest.mark.parametrize("name", ["Grafana", "a b", "a.b", "a}", "", "a" * 40])
def test_a_name_that_could_change_the_configuration_is_refused(helm: Helm, name: str) -> None:
    with pytest.raises(HelmError, match="monitoringUsers"):
        helm.template(UMBRELLA, {"nats": {"monitoringUsers": [name]}})


@pytest.mark.parametrize(
    "values", [{}, {"global": {"secrets": {"nats": "ours"}}}], ids=["generated", "any-password"]
)
async def test_the_server_takes_its_configuration_and_each_user_its_password(
    helm: Helm, values: dict[str, Any], tmp_path: Path
) -> None:
    text, environment = server(helm.template(UMBRELLA, values))
    with running(text, environment, tmp_path) as url:
        admin = Credentials("admin", environment["SECRET_ADMIN"])
        assert await provision.provision([url], admin, topology(WIRINGS))
        for wiring in WIRINGS:
            password = environment[f"SECRET_{wiring.name.upper()}"]
            await provision.enter([url], Credentials(wiring.name, password))
        with pytest.raises(BusDeniedError):
            await provision.enter([url], Credentials("submit", "wrong"))
        # A service makes no streams.
        submit = Credentials("submit", environment["SECRET_SUBMIT"])
        with pytest.raises(BusDeniedError):
            await provision.provision([url], submit, topology(WIRINGS), reply_timeout_s=0.5)


def test_three_servers_know_one_another_by_name(helm: Helm, tmp_path: Path) -> None:
    text, environment = server(helm.template(UMBRELLA, {"nats": {"replicas": 3}}))
    password = environment["SECRET_ROUTE"]
    wanted = ", ".join(
        f'"nats-route://route:{password}@shiftwork-nats-{n}.shiftwork-nats-servers:6222"'
        for n in range(3)
    )
    assert environment["NATS_ROUTES"] == f"[{wanted}]"
    config = tmp_path / "nats.conf"
    config.write_text(text)
    done = subprocess.run(
        [program(), "-t", "--config", config],
        env={**os.environ, **environment},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr


def test_streams_are_refused_before_the_disk_is_full(helm: Helm) -> None:
    text, _ = server(helm.template(UMBRELLA, {"nats": {"persistence": {"size": "10Gi"}}}))
    assert f"max_file_store: {10 * 2**30 * 9 // 10}\n" in text
