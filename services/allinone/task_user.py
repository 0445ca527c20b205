"""Chooses the user that tasks run as if root runs the platform: ``up`` and ``dev`` refuse to start
without a choice, and refuse one that would give tasks access to the databases.
"""

from __future__ import annotations

import os
import pwd
import re
import shlex

from shiftwork.cli.failures import USAGE, Failure

from services.allinone.data_folder import DataFolder, Options
from services.allinone.embedded.accounts import service_account
from services.launcher.task_users import EXAMPLE, Choice, task_users

CHOICES = (
    f"add --task-users {EXAMPLE} (each owner's tasks as a user of their own), --task-user NAME"
    " (all tasks as that user) or --tasks-as-root (only for trusted people: whoever may submit"
    " has root's rights)"
)

# Each server, and its folder in the data folder.
SERVERS = (("PostgreSQL", "postgres/data"), ("NATS", "nats"))


def _as_typed(text: str) -> str:
    """The launcher's settings as the options of `up` that they come from."""
    return re.sub(
        r"\b(task_users?|tasks_as_root)\b", lambda found: f"--{found[0].replace('_', '-')}", text
    )


def _no_service_user(problem: str) -> Failure:
    what, _, fix = problem.partition("; ")
    fix = f"{fix}; name a user of this machine, or leave --service-user out"
    return Failure(what, where="--service-user", fix=fix, code=USAGE)


def check_service_user(data_folder: DataFolder, options: Options) -> None:
    """Raises Failure, with the fix, if the servers cannot run as chosen: a choice that has no
    effect would pass for one that has."""
    wanted = options.service_user
    if os.geteuid() != 0:
        if not wanted:
            return
        text = "only root can run PostgreSQL and NATS as another user"
        raise Failure(text, where="--service-user", fix="leave --service-user out", code=USAGE)
    for server, folder in SERVERS:
        data = data_folder.data / folder
        try:
            account = service_account(data, wanted)
        except LookupError as problem:
            raise _no_service_user(str(problem)) from problem
        if wanted and account is not None and account.uid != pwd.getpwnam(wanted).pw_uid:
            raise Failure(
                f"{server} runs as {account.name}, who owns its data, not as {wanted}",
                where="--service-user",
                fix=f"--service-user {account.name}, or give the data away while the platform is"
                f" down: chown -R {wanted}: {shlex.quote(str(data))}",
            )


def check_task_user(data_folder: DataFolder, options: Options) -> None:
    """Raises Failure, with the fix, if tasks may not run as chosen."""
    choice = Choice(options.task_user or "", options.task_users or "", options.tasks_as_root)
    if os.geteuid() == 0 and choice == Choice():
        what = "run by root, `up` needs to know which user tasks run as"
        raise Failure(what, fix=CHOICES, code=USAGE)
    try:
        found = task_users(choice, data_folder.machine)
    except ValueError as problem:
        what, _, fix = _as_typed(str(problem)).partition("; ")
        where = "--task-users" if choice.users else "--task-user"
        raise Failure(what, where=where, fix=fix, code=USAGE) from problem
    for server, data in SERVERS:
        try:
            account = service_account(data_folder.data / data, options.service_user)
        except LookupError as problem:
            raise _no_service_user(str(problem)) from problem
        if found is not None and account is not None and account.uid in found.uids:
            raise Failure(
                f"{server} runs as {account.name}, so tasks of that user could reach its data",
                where="--task-users" if choice.users else "--task-user",
                fix=f"give tasks another user, best --task-users {EXAMPLE}",
                code=USAGE,
            )
