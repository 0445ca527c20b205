"""Checks the nodes that the options of ``up`` declare with the launcher's own settings.

Called by ``checks.py`` before a start. Otherwise the launcher would refuse its settings again and
again, and the platform would never be ready.
"""

from __future__ import annotations

import os
from collections.abc import Iterator

from pydantic import ValidationError
from shiftwork.cli.failures import USAGE

from services.allinone.data_folder import DataFolder, Options
from services.allinone.findings import Finding
from services.allinone.machine import Machine, launcher_values
from services.launcher.local_nodes import plan_nodes
from services.launcher.settings import LauncherSettings

FILE_VARIABLE = "SHIFTWORK_LAUNCHER_NODES_FILE"
# The settings that are options of ``up``.
_OPTIONS = {"virtual_nodes": "--nodes", "slots_per_node": "--slots"}


def declares_nodes(options: Options) -> bool:
    """True if there is anything to check."""
    declared = options.nodes is not None or options.slots is not None or options.nodes_file
    return bool(declared) or FILE_VARIABLE in os.environ


def check_nodes(data_folder: DataFolder, options: Options) -> Iterator[Finding]:
    """What the launcher would refuse; nothing if it accepts the nodes."""
    machine = Machine(data_folder, options, nats_url="", database_urls={}, url="http://127.0.0.1")
    connections = {"database_url": "postgresql://", "nats_url": "nats://127.0.0.1"}
    try:
        settings = LauncherSettings.model_validate(connections | launcher_values(machine))
    except ValidationError as error:
        # What comes from the environment alone is reported by the check of settings.
        for problem in error.errors():
            option = _OPTIONS.get(str(problem["loc"][0]) if problem["loc"] else "")
            if option:
                limit = problem.get("ctx", {}).get("le")
                text = f"{option} {problem['input']} is more than {limit}"
                yield Finding("bad", text, f"give at most {limit}", option, USAGE)
        return
    try:
        plan_nodes(settings, ())
    except ValueError as problem:
        where = "--nodes-file" if options.nodes_file else FILE_VARIABLE
        text = " ".join(str(problem).removeprefix("nodes_file ").split())
        yield Finding("bad", text, "correct the file, or give another", where, USAGE)
