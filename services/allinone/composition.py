"""All services of the platform, and their settings on one machine. The composition root.

``up`` builds the settings as values; ``dev`` gives the same values as environment variables.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from difflib import get_close_matches

from pydantic import ValidationError

from libs.service.run import SettingProblem, setting_problems
from libs.service.settings import BaseServiceSettings
from libs.service.wiring import Wiring
from services.allinone.data_folder import DataFolder, Options
from services.allinone.embedded.accounts import name_of
from services.allinone.machine import Machine, launcher_values
from services.gateway.main import WIRING as GATEWAY
from services.launcher.main import WIRING as LAUNCHER
from services.log_collector.main import WIRING as LOG_COLLECTOR
from services.monitor.main import WIRING as MONITOR
from services.quota.main import WIRING as QUOTA
from services.scheduler.main import WIRING as SCHEDULER
from services.submit.main import WIRING as SUBMIT

# In the order of the walk of a task; each can start without the others.
WIRINGS: tuple[Wiring, ...] = (SUBMIT, SCHEDULER, LAUNCHER, LOG_COLLECTOR, QUOTA, MONITOR, GATEWAY)


def values_of(wiring: Wiring, machine: Machine) -> dict[str, str]:
    """A service's settings by field name, as text."""
    credentials = machine.data_folder.credentials
    common = {
        "database_url": machine.database_urls[wiring.name],
        "database_password_file": str(credentials.postgres_password_file(wiring.name)),
        "nats_url": machine.nats_url,
        "nats_user": wiring.name,
        "nats_password_file": str(credentials.nats_password_file(wiring.name)),
    }
    own = _OWN.get(wiring.name)
    return common | (own(machine) if own else {})


def _scheduler(machine: Machine) -> dict[str, str]:
    return {"dumps": str(machine.data_folder.dumps)}


def _log_collector(machine: Machine) -> dict[str, str]:
    return {"runs_dir": str(machine.data_folder.runs), "logs_dir": str(machine.data_folder.logs)}


def _gateway(machine: Machine) -> dict[str, str]:
    options = machine.options
    return {
        "http_host": options.host,
        "http_port": str(options.port),
        "admin_token_file": str(machine.data_folder.credentials.admin_token_file),
        "run_token_key_file": str(machine.data_folder.credentials.run_key_file),
        "tasks_run_as": options.task_user or options.task_users or name_of(os.geteuid()),
        **({"visibility": options.visibility} if options.visibility else {}),
    }


# The settings of a service besides its connections.
_OWN: dict[str, Callable[[Machine], dict[str, str]]] = {
    "scheduler": _scheduler,
    "launcher": launcher_values,
    "log_collector": _log_collector,
    "gateway": _gateway,
}


def settings_of(wiring: Wiring, machine: Machine) -> BaseServiceSettings:
    """A service's settings, for running it in this process."""
    return wiring.settings.model_validate(values_of(wiring, machine))


def environment_of(wiring: Wiring, machine: Machine) -> dict[str, str]:
    """A service's settings as environment variables, for running it as a process."""
    prefix = str(wiring.settings.model_config.get("env_prefix", ""))
    return {prefix + name.upper(): value for name, value in values_of(wiring, machine).items()}


def doubtful_settings(
    data_folder: DataFolder, options: Options
) -> Iterator[tuple[SettingProblem, bool]]:
    """Yield the services' variables in the environment that are invalid or have no effect, each
    with whether it keeps a service from starting. Nothing needs to run."""
    machine = Machine(
        data_folder=data_folder,
        options=options,
        nats_url="nats://127.0.0.1",
        database_urls={wiring.name: "postgresql://" for wiring in WIRINGS},
        url="http://127.0.0.1",
    )
    for wiring in WIRINGS:
        prefix = str(wiring.settings.model_config.get("env_prefix", ""))
        known = {prefix + field.upper() for field in wiring.settings.model_fields}
        own = environment_of(wiring, machine)
        for name in sorted(each for each in os.environ if each.upper().startswith(prefix)):
            if name.upper() not in known:
                near = get_close_matches(name.upper(), known, 1)
                meant = f"; did you mean {near[0]}?" if near else ""
                yield SettingProblem((name,), f"there is no such setting{meant}"), False
            elif name.upper() in own:
                without = "it has no effect here: `up` sets it, some by its options"
                yield SettingProblem((name,), without), False
        try:
            settings_of(wiring, machine)
        except ValidationError as error:
            for problem in setting_problems(wiring, error):
                yield problem, True
