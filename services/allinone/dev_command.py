"""``make dev`` as a command: its options, and how it ends.

Kept light: what runs a platform takes seconds to import, and Ctrl-C then is to end it quietly, too.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Annotated

import typer
from shiftwork.cli import render
from shiftwork.cli.failures import INTERRUPTED, Failure
from shiftwork.cli.homes import default_data

from services.allinone.cli import Port, TasksAsRoot, TaskUser, TaskUsers
from services.allinone.data_folder import DataFolder, Options, with_task_user

VIRTUAL_NODES, SLOTS_PER_NODE = 2, 2


def main(  # noqa: PLR0917 - a command: every parameter is an option by name
    data: Annotated[Path | None, typer.Option(help="Data folder.", show_default=False)] = None,
    port: Port = None,
    nodes: Annotated[int | None, typer.Option(min=1, help="Virtual nodes.")] = None,
    slots: Annotated[int | None, typer.Option(min=0, help="Slots on each virtual node.")] = None,
    task_user: TaskUser = None,
    task_users: TaskUsers = None,
    tasks_as_root: TasksAsRoot = False,
) -> None:
    """Every service as a process of its own, on embedded NATS and PostgreSQL, until Ctrl-C."""
    try:
        from libs.signals.gpus import find_gpus  # noqa: PLC0415 - as above
        from services.allinone.dev import Dev  # noqa: PLC0415 - slow to import
        from services.allinone.platform_process import keep_here  # noqa: PLC0415 - as above

        data_folder = DataFolder(data or default_data().with_name("shiftwork-dev"))
        known = data_folder.options() or Options()
        if nodes is None and slots is None and known.nodes is None and not find_gpus().gpus:
            nodes, slots = VIRTUAL_NODES, SLOTS_PER_NODE
        options = replace(
            known,
            port=known.port if port is None else port,
            nodes=known.nodes if nodes is None else nodes,
            slots=known.slots if slots is None else slots,
        )
        options = with_task_user(options, task_user, task_users, tasks_as_root)
        code = keep_here(data_folder, options, verbose=True, form="console", make=Dev)
    except Failure as failure:
        render.failure(failure)
        code = failure.code
    except KeyboardInterrupt:
        code = INTERRUPTED
    raise typer.Exit(code)


if __name__ == "__main__":
    typer.run(main)
