"""The addresses, folders and secrets of one machine's platform, for the composition root."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from services.allinone.data_folder import DataFolder, Options


@dataclass(frozen=True, slots=True)
class Machine:
    """The addresses, folders and secrets, once the servers run."""

    data_folder: DataFolder
    options: Options
    nats_url: str
    # Role -> URL of the database.
    database_urls: Mapping[str, str]
    # Where tasks find the gateway.
    url: str


def launcher_values(machine: Machine) -> dict[str, str]:
    """The launcher's settings beyond its connections, by field name, as text."""
    options = machine.options
    own = {
        "data_folder": str(machine.data_folder.machine),
        "task_url": machine.url,
        "run_token_key_file": str(machine.data_folder.credentials.run_key_file),
    }
    if options.nodes is not None or options.slots is not None:
        own["virtual_nodes"] = str(options.nodes or 1)
        own["slots_per_node"] = str(1 if options.slots is None else options.slots)
    if options.nodes_file:
        own["nodes_file"] = options.nodes_file
    # All three, so that the environment cannot add what `up` has not validated.
    own["task_user"], own["task_users"] = options.task_user or "", options.task_users or ""
    own["tasks_as_root"] = str(options.tasks_as_root)
    return own
