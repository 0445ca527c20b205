"""``shiftwork submit``: a file and options to a task, and with ``-f`` its whole life."""

import json
import os
import re
import secrets
import sys
from pathlib import Path
from typing import Any, Callable, Dict, List, Mapping, Optional, Tuple

import typer

from shiftwork.cli import complete, environments, follow, here, parse, render, session
from shiftwork.cli.failures import told_as_typed, usage

_PREEMPT = re.compile(r"sdk|kill|signal(:[A-Za-z0-9]+)?")
FILE_BYTES_MAX = 1_048_576


def register(app: session.App) -> None:
    """Add the command."""
    # What follows the first word that is no option belongs to the task, `--json` included.
    app.command("submit", context_settings={"allow_interspersed_args": False})(submit)


def submit(
    command: Optional[List[str]] = typer.Argument(
        None,
        metavar="-- CMD ...",
        help="The program of each replica, after --.",
        show_default=False,
    ),
    name: str = typer.Option("", "--name", help="Unique among your live tasks."),
    nodes: Optional[int] = typer.Option(None, "--nodes", min=1, help="Default 1."),
    gpus_per_node: Optional[int] = typer.Option(
        None, "--gpus-per-node", "--gpus", min=0, help="Left out: whole nodes. 0: CPU only."
    ),
    priority: str = typer.Option(
        "",
        "--priority",
        help="extreme_high ... idle, auto; normal.",
        autocompletion=complete.priorities,
    ),
    group: str = typer.Option(
        "", "--group", help="Group of nodes; default.", autocompletion=complete.groups
    ),
    env: Optional[List[str]] = typer.Option(None, "--env", metavar="K=V", help="Repeatable."),
    workdir: str = typer.Option(
        "", "--workdir", help="Left out: here, if the server is on this machine."
    ),
    venv: Optional[Path] = typer.Option(
        None, "--venv", metavar="DIR", help="Its environment. Left out: the one activated here."
    ),
    label: Optional[List[str]] = typer.Option(
        None, "--label", "-l", metavar="K=V", help="Repeatable."
    ),
    node_selector: Optional[List[str]] = typer.Option(
        None, "--node-selector", metavar="K=V", help="A label its nodes must have; repeatable."
    ),
    tolerate: Optional[List[str]] = typer.Option(
        None, "--tolerate", metavar="KEY[=VALUE]", help="A taint it does not mind; repeatable."
    ),
    ack_deadline: str = typer.Option(
        "", "--ack-deadline", help="Time to save a checkpoint when preempted; 60s."
    ),
    preempt: str = typer.Option("", "--preempt", metavar="sdk|signal[:TERM]|kill"),
    fence_after: str = typer.Option(
        "", "--fence-after", help="End the program when out of touch so long; off."
    ),
    max_run_time: str = typer.Option("", "--max-run-time", help="Ends the task; such as 4h."),
    retries: Optional[int] = typer.Option(None, "--retries", min=0, help="After failures; 0."),
    image: str = typer.Option("", "--image", help="Container image; the site's."),
    mount: Optional[List[str]] = typer.Option(
        None, "--mount", metavar="GRANT", help="A storage grant to mount; repeatable."
    ),
    shm: str = typer.Option("", "--shm", metavar="SIZE", help="Of /dev/shm; such as 8Gi."),
    resource: Optional[List[str]] = typer.Option(
        None, "--resource", metavar="K=V", help="More of each pod: rdma/hca=1; repeatable."
    ),
    pod_template: Optional[Path] = typer.Option(
        None, "--pod-template", help="Part of a pod in YAML or JSON, as far as the site allows."
    ),
    key: str = typer.Option("", "--key", help="Submitting twice with one key gives one task."),
    file: Optional[Path] = typer.Option(
        None, "--file", help="A task in YAML or JSON, - for standard input; options override it."
    ),
    dry_run: bool = typer.Option(
        False, "--dry-run", help="Say what would be submitted, and whether it fits; nothing is."
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
    if command == ["-"] and not now.separated and file is None:
        command, file = None, Path("-")
    if command and not now.separated:
        raise usage(
            "the task's command must follow --",
            where=command[0],
            fix="write: shiftwork submit [options] -- " + " ".join(command),
        )
    given = {
        "--name": name,
        "--nodes": nodes,
        "--gpus-per-node": gpus_per_node,
        "--priority": priority,
        "--group": group,
        "--env": env,
        "--workdir": workdir,
        "--label": label,
        "--node-selector": node_selector,
        "--tolerate": tolerate,
        "--ack-deadline": ack_deadline,
        "--preempt": preempt,
        "--fence-after": fence_after,
        "--max-run-time": max_run_time,
        "--retries": retries,
        "--image": image,
        "--mount": mount,
        "--shm": shm,
        "--resource": resource,
        "--pod-template": pod_template,
        "--force": force or None,
        "CMD": command,
    }
    given = {option: value for option, value in given.items() if value not in (None, "", [])}
    target = now.target()
    body = _overridden(read_file(file) if file is not None else {}, given, file)
    source = str(file) if file is not None else ""
    # With a file, a field is the file's unless an option was given for it.
    flags = {
        field: option for option, (field, _) in FIELDS.items() if option in given or not source
    }
    flags["wait_for_nodes"] = "--force"
    if not source or "CMD" in given:
        flags.update({"roles": "CMD", "command": "CMD"})
    api = now.api()
    # Pods have a file system of their own, however near the server seems.
    environments.add(body, target, venv)
    if target.is_local and "pod" not in body:
        body.setdefault("working_directory", str(Path.cwd()))
        if not force:
            directory, command_place = (
                flags.get(name, name) for name in ("working_directory", "command")
            )
            here.check(body, directory=directory, command=command_place)
            here.check_rights(
                body,
                lambda: str(api.get("/v1/whoami").get("tasks_run_as") or ""),
                directory=directory,
                command=command_place,
            )
    with told_as_typed(flags, source):
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
        render.line(task["id"])
    if follow_it:
        raise typer.Exit(follow.to_the_end(api, task))
    render.detail(
        f"follow it: shiftwork logs {task['id']} -f; why it waits: shiftwork explain {task['id']}"
    )


def _show_dry_run(told: Dict[str, Any]) -> None:
    if session.current().json:
        render.document(told)
        return
    task = told["task"]
    nodes, free, ahead = task["nodes"], told["free_nodes"], told["ahead"]
    fits = "it would be accepted"
    if free is not None:
        fits = f"{min(free, nodes)} of {nodes} nodes are free for it now"
    if ahead:
        fits += f"; {ahead} of its group wait at its level or above"
    gpus = task["gpus_per_node"]
    command = "; ".join(" ".join(role["command"]) for role in task["roles"])
    render.facts(
        [
            ("name", task["name"]),
            ("owner", task["owner"]),
            ("priority", task["priority"]),
            ("group", task["group"]),
            ("size", f"{nodes} x " + ("whole nodes" if gpus is None else f"{gpus} GPUs")),
            ("labels", render.labels(task["labels"])),
            ("on nodes with", render.labels(task["node_selector"])),
            ("command", command),
            ("directory", task["working_directory"]),
            ("preemption", task["preemption"]["mode"]),
            ("fits", fits),
        ]
    )
    render.note("nothing is submitted")


def _overridden(
    body: Dict[str, Any], given: Mapping[str, Any], file: Optional[Path]
) -> Dict[str, Any]:
    """The API's new task: the file's fields, and over them what the options say. What neither
    gives the platform fills in."""
    if "CMD" in given and body.get("roles"):
        raise usage(
            "the roles of the file have commands of their own",
            where=str(file),
            fix="leave out what follows --, or the roles",
        )
    if "--preempt" in given:
        # The file's signal belongs to the file's mode.
        body["preemption"] = {**parse.fields(body.get("preemption"))}
        body["preemption"].pop("signal", None)
    for option, (field, read) in FIELDS.items():
        if option in given:
            _put(body, field, read(given[option], option), whole=option in WHOLE)
    if not (body.get("command") or body.get("roles")):
        raise usage(
            "there is no command to run",
            where=str(file) if file is not None else "",
            fix="write: shiftwork submit [options] -- CMD ..., or give --file",
        )
    return body


def _put(body: Dict[str, Any], field: str, value: Any, *, whole: bool) -> None:  # noqa: ANN401
    """Set ``a.b`` of a document. A mapping is added to the one that is there, unless ``whole``."""
    *above, last = field.split(".")
    for name in above:
        body[name] = body = dict(parse.fields(body.get(name)))
    if parse.fields(value) and not whole:
        body[last] = {**parse.fields(body.get(last)), **parse.fields(value)}
    else:
        body[last] = value


def _as_given(value: Any, option: str) -> Any:  # noqa: ANN401 - the option's own type
    del option
    return value


def _directory(value: str, option: str) -> str:
    del option
    return os.path.abspath(value)  # noqa: PTH100 - keeps links


def _mode(value: str, option: str) -> Dict[str, str]:
    if not _PREEMPT.fullmatch(value):
        raise usage(
            f"{value!r} is no way to preempt",
            where=option,
            fix="choose sdk, signal, signal:TERM (any signal's name) or kill",
        )
    word, _, signal = value.partition(":")
    return {"mode": word, "signal": signal} if signal else {"mode": word}


def _template(path: Path, option: str) -> Dict[str, Any]:
    del option
    # A whole Pod is fine, too: what kind of object it is need not be said.
    found = read_file(path, "pod template", "spec: {...}")
    return {name: part for name, part in found.items() if name not in ("apiVersion", "kind")}


# Each option: the API's field, and how the text becomes its value. What was typed, and what an
# error says of it, both follow from this.
FIELDS: Dict[str, Tuple[str, Callable[..., Any]]] = {
    "CMD": ("command", _as_given),
    "--name": ("name", _as_given),
    "--nodes": ("nodes", _as_given),
    "--gpus-per-node": ("gpus_per_node", _as_given),
    "--group": ("group", _as_given),
    "--priority": ("priority", parse.priority),
    "--env": ("env", parse.pairs),
    "--label": ("labels", parse.pairs),
    "--node-selector": ("node_selector", parse.pairs),
    "--tolerate": ("tolerations", parse.taints),
    "--workdir": ("working_directory", _directory),
    "--retries": ("retry.max_retries", _as_given),
    "--preempt": ("preemption", _mode),
    "--ack-deadline": ("preemption.ack_deadline_seconds", parse.duration),
    "--max-run-time": ("max_run_seconds", parse.duration),
    "--fence-after": ("fence_after_seconds", parse.duration),
    "--image": ("pod.image", _as_given),
    "--mount": ("pod.storage", _as_given),
    "--shm": ("pod.shm_bytes", parse.size),
    "--resource": ("pod.resources", parse.pairs),
    "--pod-template": ("pod.template", _template),
    "--force": ("wait_for_nodes", _as_given),
}
# Mappings that replace the file's; others are added to it.
WHOLE = frozenset({"--pod-template"})


def read_file(path: Path, what: str = "task", such_as: str = "command: [...]") -> Dict[str, Any]:
    """A task from a file, in the API's own fields. JSON always, YAML where PyYAML is."""
    try:
        if str(path) == "-":
            data = sys.stdin.buffer.read(FILE_BYTES_MAX + 1)
        else:
            with path.open("rb") as opened:
                data = opened.read(FILE_BYTES_MAX + 1)
        text = data.decode()
    except OSError as error:
        raise usage(f"the file cannot be read: {error.strerror}", where=str(path)) from error
    except UnicodeDecodeError:
        raise usage("the file is not UTF-8", where=str(path)) from None
    if len(data) > FILE_BYTES_MAX:
        raise usage(f"the file is larger than {FILE_BYTES_MAX} bytes", where=str(path))
    found: Any
    try:
        found = json.loads(text)
    except ValueError as not_json:
        found = _yaml(path, text, not_json)
    body = parse.fields(found)
    if not body:
        raise usage(
            f"the file holds no {what}",
            where=str(path),
            fix=f"write its fields, such as {such_as}",
        )
    return body


def _yaml(path: Path, text: str, not_json: ValueError) -> Any:  # noqa: ANN401 - any document
    try:
        import yaml  # noqa: PLC0415 - optional: the extra needs Typer and rich alone
    except ImportError:
        raise usage(
            f"the file is not JSON ({not_json}) and YAML cannot be read here",
            where=str(path),
            fix="write JSON, or install PyYAML",
        ) from None
    try:
        return yaml.safe_load(text)
    except yaml.YAMLError as error:
        raise usage(f"the file is not YAML: {error}", where=str(path)) from None
