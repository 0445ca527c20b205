"""All services of the platform, and what each is told on one machine. The composition root.

``up`` builds the settings as values; ``dev`` gives the same values as environment variables.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from libs.service.settings import BaseServiceSettings
from libs.service.wiring import Wiring
from services.allinone.place import Options, Place
from services.gateway.main import WIRING as GATEWAY
from services.launcher.main import WIRING as LAUNCHER
from services.log_collector.main import WIRING as LOG_COLLECTOR
from services.quota.main import WIRING as QUOTA
from services.scheduler.main import WIRING as SCHEDULER
from services.submit.main import WIRING as SUBMIT

# In the order of the walk of a task; each can start without the others.
WIRINGS: tuple[Wiring, ...] = (SUBMIT, SCHEDULER, LAUNCHER, LOG_COLLECTOR, QUOTA, GATEWAY)


@dataclass(frozen=True, slots=True)
class Machine:
    """Where everything is, once the servers run."""

    place: Place
    options: Options
    nodes_json: str
    nats_url: str
    # Role -> URL of the database.
    database_urls: Mapping[str, str]
    # Where tasks find the gateway.
    url: str


def values_of(wiring: Wiring, machine: Machine) -> dict[str, str]:
    """A service's settings by field name, as text."""
    credentials = machine.place.credentials
    common = {
        "database_url": machine.database_urls[wiring.name],
        "database_password_file": str(credentials.postgres_password_file(wiring.name)),
        "nats_url": machine.nats_url,
        "nats_user": wiring.name,
        "nats_password_file": str(credentials.nats_password_file(wiring.name)),
    }
    return common | _OWN[wiring.name](machine)


def _launcher(machine: Machine) -> dict[str, str]:
    own = {
        "nodes": machine.nodes_json,
        "machine_dir": str(machine.place.machine),
        "gateway_url": machine.url,
        "run_token_key_file": str(machine.place.credentials.run_key_file),
    }
    return own | ({"task_user": machine.options.task_user} if machine.options.task_user else {})


_OWN = {
    "submit": lambda _: {},
    "quota": lambda _: {},
    "scheduler": lambda machine: {"dump_dir": str(machine.place.dumps)},
    "launcher": _launcher,
    "log_collector": lambda machine: {
        "runs_dir": str(machine.place.runs),
        "logs_dir": str(machine.place.logs),
    },
    "gateway": lambda machine: {
        "http_host": machine.options.host,
        "http_port": str(machine.options.port),
        "admin_token_file": str(machine.place.credentials.admin_token_file),
        "run_token_key_file": str(machine.place.credentials.run_key_file),
    },
}


def settings_of(wiring: Wiring, machine: Machine) -> BaseServiceSettings:
    """A service's settings, for running it in this process."""
    return wiring.settings.model_validate(values_of(wiring, machine))


def environment_of(wiring: Wiring, machine: Machine) -> dict[str, str]:
    """A service's settings as environment variables, for running it as a process."""
    prefix = str(wiring.settings.model_config.get("env_prefix", ""))
    return {prefix + name.upper(): value for name, value in values_of(wiring, machine).items()}


