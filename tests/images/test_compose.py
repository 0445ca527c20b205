"""``docker/compose.yaml`` against the settings that services really have; no engine is needed."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from services.allinone.composition import WIRINGS
from services.allinone.provision import PREFIX, ProvisionSettings
from tests.images.compose import read, secrets_of
from tools.generate_docs import NATS_SERVER
from tools.images.catalog import BY_NAME, DOCKER

SERVICES = {wiring.name.replace("_", "-"): wiring for wiring in WIRINGS}
BY_SERVICE = pytest.mark.parametrize("name", SERVICES)


@pytest.fixture(scope="module")
def secrets(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("secrets")
    subprocess.run([DOCKER / "secrets.sh", folder], check=True, stdout=subprocess.DEVNULL)
    return folder


@pytest.fixture(scope="module")
def document(secrets: Path) -> dict[str, Any]:
    return read({"SHIFTWORK_SECRETS": str(secrets)})


def targets(service: dict[str, Any]) -> dict[str, str]:
    """What is mounted, by where."""
    return {parts[1]: parts[0] for parts in (each.split(":") for each in service["volumes"])}


def lies_in(path: str, mounted: dict[str, str]) -> str:
    """Where a container's path comes from on the host; empty if from nowhere."""
    for target, source in mounted.items():
        if path == target:
            return source
        if path.startswith(f"{target}/"):
            return source + path.removeprefix(target)
    return ""


def test_every_service_is_there_and_nothing_else(document: dict[str, Any]) -> None:
    assert set(document["services"]) == {*SERVICES, "postgres", "nats", "provision"}
    for name, service in document["services"].items():
        image = service["image"].removeprefix("localhost/shiftwork/").removesuffix(":dev")
        assert image in BY_NAME
        assert set(service.get("depends_on", ())) <= set(document["services"])
        if name in SERVICES:
            assert service["command"] == [f"services.{SERVICES[name].name}"]


@BY_SERVICE
def test_a_service_gets_valid_settings(document: dict[str, Any], name: str) -> None:
    wiring, service = SERVICES[name], document["services"][name]
    prefix = str(wiring.settings.model_config.get("env_prefix"))
    environment = {key: str(value) for key, value in service["environment"].items()}
    fields = {prefix + field.upper(): field for field in wiring.settings.model_fields}
    assert set(environment) <= set(fields)
    # Types and ranges are checked by the class itself.
    mounted = targets(service)
    on_host = {key: lies_in(value, mounted) for key, value in environment.items()}
    values = {
        # A file that lies beside the compose file is read as it is on the host.
        fields[key]: DOCKER / on_host[key] if on_host[key].startswith("./") else value
        for key, value in environment.items()
    }
    settings = wiring.settings.model_validate(values)
    port = 8642 if name == "gateway" else 8080
    assert settings.http_port == port
    assert f":{port}/readyz" in service["healthcheck"]["test"][-1]
    assert settings.database_url == f"postgresql://{wiring.name}@postgres:5432/shiftwork"


@BY_SERVICE
def test_a_service_finds_its_own_secrets_and_nobody_elses(
    document: dict[str, Any], secrets: Path, name: str
) -> None:
    wiring, service = SERVICES[name], document["services"][name]
    mounted = targets(service)
    for key, value in service["environment"].items():
        if key.endswith("_FILE"):
            source = lies_in(str(value), mounted)
            assert source, f"{key}: nothing is mounted at {value}"
            assert (DOCKER / source).read_text().strip()
    own = {f"postgres/{wiring.name}", f"nats/{wiring.name}"}
    shared = {"run-token-key", "launcher-run-token-key", "admin-token"}
    given = {
        str(Path(source).relative_to(secrets))
        for source in mounted.values()
        if Path(source).is_relative_to(secrets)
    }
    assert own <= given <= own | shared
    assert name == "gateway" or "admin-token" not in given


def test_the_provisioner_gets_valid_settings_and_files(
    document: dict[str, Any], secrets: Path
) -> None:
    service = document["services"]["provision"]
    fields = {PREFIX + field.upper(): field for field in ProvisionSettings.model_fields}
    values = {fields[key]: value for key, value in service["environment"].items()}
    settings = ProvisionSettings.model_validate(values)
    mounted = targets(service)
    for folder in (settings.database_passwords, settings.nats_passwords):
        for wiring in WIRINGS:
            assert Path(lies_in(f"{folder}/{wiring.name}", mounted)).is_file()
    for file in (settings.database_password_file, settings.nats_password_file):
        assert Path(lies_in(str(file), mounted)).is_file()


def test_nothing_has_more_rights_than_it_needs(document: dict[str, Any]) -> None:
    published = {}
    for name, service in document["services"].items():
        assert service["read_only"] is True, name
        assert not {"privileged", "network_mode", "pid", "devices"} & set(service), name
        if "ports" in service:
            published[name] = service["ports"]
        assert service["cap_drop"] == ["ALL"], name
        assert service["security_opt"] == ["no-new-privileges:true"], name
        # Root only where tasks are run as somebody else, or their files are read.
        root = {"provision", "launcher", "log-collector"}
        assert service.get("user") in (None, "999:999") or name in root
    assert published == {"gateway": ["127.0.0.1:8642:8642"]}


def test_every_server_has_a_health_check(document: dict[str, Any]) -> None:
    for name, service in document["services"].items():
        check = service["healthcheck"]
        if name == "provision":
            assert check == {"disable": True}
        else:
            assert check["test"][0] == "CMD"
        for other, condition in service.get("depends_on", {}).items():
            once = other == "provision"
            assert condition == {
                "condition": "service_completed_successfully" if once else "service_healthy"
            }


def test_no_environment_holds_a_secret_but_the_message_servers(
    document: dict[str, Any], secrets: Path
) -> None:
    values = set(secrets_of(secrets).values())
    for name, service in document["services"].items():
        assert not values & {str(value) for value in service.get("environment", {}).values()}, name
        assert "env_file" not in service or name == "nats"


def test_the_message_server_takes_its_configuration(
    document: dict[str, Any], secrets: Path
) -> None:
    mounted = targets(document["services"]["nats"])
    config = (DOCKER / mounted["/etc/nats/nats.conf"]).resolve()
    assert config == NATS_SERVER
    given = dict(
        line.split("=", 1) for line in (secrets / "nats.env").read_text().splitlines() if line
    )
    wanted = set(re.findall(r"\$(NATS_\w+)", config.read_text()))
    assert wanted == set(given)
    server = Path(sys.executable).parent / "nats-server"
    done = subprocess.run(
        [server, "--config", config, "-t"],
        env={"PATH": os.environ["PATH"], **given},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr


def test_monitoring_users_are_named_once_for_secrets_server_and_provisioner(
    tmp_path: Path,
) -> None:
    folder, names = tmp_path / "secrets", "grafana audit_2"
    named = {"SHIFTWORK_MONITORING_USERS": names}
    command = [DOCKER / "secrets.sh", folder]
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL, env={**os.environ, **named})
    config = folder / "nats.conf"
    printed = [sys.executable, "-m", "services.allinone.provision", "nats-config", "--monitoring"]
    config.write_bytes(subprocess.check_output([*printed, *names.split()]))
    variables = {**named, "SHIFTWORK_SECRETS": str(folder), "SHIFTWORK_NATS_CONFIG": str(config)}
    document = read(variables)
    assert targets(document["services"]["nats"])["/etc/nats/nats.conf"] == str(config)
    environment = document["services"]["provision"]["environment"]
    assert environment["SHIFTWORK_PROVISION_MONITORING_USERS"] == names
    given = dict(line.split("=", 1) for line in (folder / "nats.env").read_text().splitlines())
    assert set(re.findall(r"\$(NATS_\w+)", config.read_text())) == set(given)
    for name in names.split():
        password = (folder / "nats" / f"monitoring_{name}").read_text().strip()
        assert given[f"NATS_PASSWORD_MONITORING_{name.upper()}"] == password
    server = Path(sys.executable).parent / "nats-server"
    check = [server, "--config", config, "-t"]
    assert subprocess.run(check, env=given, capture_output=True, check=False).returncode == 0
    refused = subprocess.run(
        command,
        env={**os.environ, "SHIFTWORK_MONITORING_USERS": "../x"},
        capture_output=True,
        check=False,
    )
    assert refused.returncode == 2
    assert not (folder / "x").exists()


def test_secrets_are_made_once_and_closed(secrets: Path) -> None:
    before = secrets_of(secrets)
    subprocess.run([DOCKER / "secrets.sh", secrets], check=True, stdout=subprocess.DEVNULL)
    assert secrets_of(secrets) == before
    assert secrets.stat().st_mode & 0o777 == 0o700
    assert (secrets / "nats.env").stat().st_mode & 0o777 == 0o600
    modes = {
        str(path.relative_to(secrets)): path.stat().st_mode & 0o777
        for path in secrets.rglob("*")
        if path.is_file() and path.name != "nats.env"
    }
    launchers = {"postgres/launcher", "nats/launcher", "launcher-run-token-key"}
    assert {name for name, mode in modes.items() if mode == 0o400} == launchers
    assert {modes[name] for name in set(modes) - launchers} == {0o444}
    # The launcher and the gateway sign and check with the same key; nothing else is shared.
    assert before["run-token-key"] == before["launcher-run-token-key"]
    own = [
        value
        for name, value in before.items()
        if not name.endswith((".env", "launcher-run-token-key"))
    ]
    assert len(set(own)) == len(own)
    assert all(re.fullmatch(r"[0-9a-f]{48}", value) for value in own)
