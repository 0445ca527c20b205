"""``shiftwork submit``: makes a task of a file and options, and follows it with ``-f``."""

import secrets
from pathlib import Path
from typing import Any, Dict, List, Mapping, Optional

import typer

from shiftwork.cli import (
    environments,
    follow,
    here,
    input_files,
    parse,
    render,
    retry_texts,
    role_facts,
    session,
    sizes,
)
from shiftwork.cli.failures import Failure, naming, usage
from shiftwork.cli.task_fields import set_field, with_task_options
from shiftwork.cli.task_options import TASK_OPTIONS

_UNITS = (("d", 86_400), ("h", 3600), ("m", 60))


def register(app: session.App) -> None:
    """Add the command."""
    # What follows the first word that is no option belongs to the task, `--json` included.
    app.command("submit", context_settings={"allow_interspersed_args": False})(
        with_task_options(submit)
    )


def submit(
    command: Optional[List[str]] = typer.Argument(
        None,
        metavar="-- CMD ...",
        help="The program of each replica, after --.",
        show_default=False,
    ),
    *,
    options: Dict[str, Any],
    venv: Optional[Path] = typer.Option(
        None, "--venv", metavar="DIR", help="Its environment. Left out: the one activated here."
    ),
    key: str = typer.Option("", "--key", help="Submitting twice with one key gives one task."),
    from_files: Optional[List[Path]] = typer.Option(
        None,
        "--file",
        metavar="FILE",
        help="A task in YAML or JSON, - for standard input; options override it.",
    ),
    paused: bool = typer.Option(
        False, "--paused", help="The same as --mode pause: it waits until it is resumed."
    ),
    dry_run: bool = typer.Option(
        False, "--dry-run", help="Show what would be submitted, and whether it fits."
    ),
    force: bool = typer.Option(
        False, "--force", help="Submit what fits no node now, or a program that is not found here."
    ),
    follow_it: bool = typer.Option(
        False, "-f", "--follow", help="Show states and output until the end; the task's exit code."
    ),
) -> None:
    """Submit a task. Prints its id."""
    now = session.current()
    command = list(command or [])
    file = _only(from_files or [])
    dash = ["-", "--"] if now.separated and session.words()[-1] == "-" else ["-"]
    if file is None and command[: len(dash)] == dash and (now.separated == (len(dash) > 1)):
        command, file = command[len(dash) :], Path("-")
    if command and not now.separated:
        raise usage(
            "the task's command must follow --",
            where=command[0],
            fix="write: shiftwork submit [options] -- " + " ".join(command),
        )
    if paused and options.get("--mode", "pause") != "pause":
        fix = (
            "leave one of them out; a task that is to wait and debug: submit it paused, then debug"
        )
        raise usage("--paused and --mode are two modes", where="--mode", fix=fix)
    given = {
        **options,
        **({"--mode": "pause"} if paused else {}),
        **({"CMD": command} if command else {}),
        **({"--force": True} if force else {}),
    }
    source = input_files.name_of(str(file)) if file is not None else ""
    # With a file, a field is the file's unless an option was given for it.
    fields = {
        option.field: option.flags[0]
        for option in TASK_OPTIONS
        if option.flags[0] in given or not source
    }
    if not source or force:
        fields["wait_for_nodes"] = "--force"
    if not source or "CMD" in given:
        fields.update({"roles": "CMD", "command": "CMD"})
    with naming(fields, file=source):
        body = _overridden(input_files.document(file) if file is not None else {}, given, source)
        typed = str(given.get("--workdir", ""))
        _add_surroundings(body, fields, venv, force=force, source=source, typed=typed)
        api = now.api()
        if dry_run:
            _show_dry_run(api.create("/v1/tasks:dry-run", body))
            return
        task = api.post("/v1/tasks", body, key or secrets.token_hex(16))
    if now.json and not follow_it:
        render.document(task)
        return
    if now.json:
        render.record(task)
    else:
        role_facts.show_warnings(task)
        render.line(task["id"])
    if follow_it:
        raise typer.Exit(follow.to_the_end(api, task))
    render.detail(
        f"follow it: shiftwork logs {task['id']} -f; why it waits: shiftwork explain {task['id']}"
    )


def _only(given: List[Path]) -> Optional[Path]:
    """The file that ``--file`` gives. Raises Failure for several: one would be passed over."""
    if len(given) > 1:
        names = ", ".join(map(str, given))
        fix = "give one, and submit the others by themselves"
        raise usage(f"--file is there twice: {names}", where="--file", fix=fix)
    return given[0] if given else None


def _add_surroundings(
    body: Dict[str, Any],
    fields: Mapping[str, str],
    venv: Optional[Path],
    *,
    force: bool,
    source: str,
    typed: str,
) -> None:
    """Add the submitter's environment and directory to a task that runs on this machine. Raises
    Failure for what is missing."""
    is_here = environments.runs_here(body, session.current().target(), _tasks_run_as)
    environments.add(body, venv, is_here=is_here)
    if is_here:
        if "working_directory" not in body:
            body["working_directory"] = str(Path.cwd())
        if not force:
            named = {
                "directory": fields.get("working_directory", "working_directory"),
                "command": fields.get("command", "command"),
            }
            try:
                here.check(body, typed=typed, **named)
                here.check_rights(body, _tasks_run_as, **named)
            except Failure as failure:
                if source and failure.where not in fields.values():
                    failure.where = input_files.place(source, failure.where)
                raise
            for text in here.missing_scripts(body):
                render.warning(text)


def _tasks_run_as() -> str:
    return str(session.current().api().get("/v1/whoami").get("tasks_run_as") or "")


def _show_dry_run(reply: Dict[str, Any]) -> None:
    if session.current().json:
        render.document(reply)
        return
    task = reply["task"]
    nodes, free, ahead = task["nodes"], reply["free_nodes"], reply["ahead"]
    fits = "it would be accepted"
    if free is not None:
        fits = f"{min(free, nodes)} of {nodes} nodes are free for it now"
    if ahead:
        fits += f"; {ahead} of its group wait at its level or above"
    preemption = task["preemption"]
    render.facts(
        [
            ("name", task["name"]),
            ("owner", task["owner"]),
            ("mode", str(task.get("run_mode") or "").replace("normal", "")),
            ("priority", task["priority"]),
            ("group", task["group"]),
            ("size", sizes.long(task)),
            ("labels", render.labels(task["labels"])),
            ("on nodes with", render.labels(task["node_selector"])),
            *role_facts.facts(task),
            ("variables", ", ".join(sorted(parse.fields(task.get("env"))))),
            ("preemption", ":".join(filter(None, (preemption["mode"], preemption.get("signal"))))),
            ("ack deadline", _span(preemption.get("ack_deadline_seconds"))),
            ("retries", retry_texts.limits(task)),
            ("restart", retry_texts.rules(task)),
            ("max run time", _span(task.get("max_run_seconds"))),
            ("fence after", _span(task.get("fence_after_seconds"))),
            ("tolerates", " ".join(parse.listed(task.get("tolerations")))),
            ("fits", fits),
        ]
    )
    role_facts.show_warnings(task)
    render.note("nothing is submitted")


def _span(seconds: Optional[float]) -> str:
    """An exact duration as an argument: ``90s``, ``4h``."""
    if not seconds:
        return ""
    unit, size = next((each for each in _UNITS if seconds % each[1] == 0), ("s", 1))
    return f"{seconds / size:.15g}{unit}"


def _overridden(body: Dict[str, Any], given: Mapping[str, Any], source: str) -> Dict[str, Any]:
    """Return the API's new task: the file's fields, overridden by the options. The platform fills
    in fields that neither gives."""
    if "CMD" in given and body.get("roles"):
        raise usage(
            "the roles of the file have commands of their own",
            where=source,
            fix="leave out what follows --, or the roles",
        )
    if "--preempt" in given:
        # The file's signal belongs to the file's mode.
        body["preemption"] = {**parse.fields(body.get("preemption"))}
        body["preemption"].pop("signal", None)
    for option in TASK_OPTIONS:
        if option.flags[0] in given:
            set_field(body, option, given[option.flags[0]])
    if "CMD" in given:
        body["command"] = given["CMD"]
    if "--force" in given:
        body["wait_for_nodes"] = True
    # A field that no option sets may be a misspelt command: the server names what is meant.
    others = body.keys() - {option.field.partition(".")[0] for option in TASK_OPTIONS}
    if not (body.get("command") or body.get("roles") or others - {"command", "roles"}):
        raise usage(
            "there is no command to run",
            where=source,
            fix="write: shiftwork submit [options] -- CMD ..., or give --file",
        )
    return body
