"""``shiftwork submit``: options or a file to a task, and with ``-f`` its whole life."""

import json
import os
import re
import secrets
from pathlib import Path
from typing import Any, Callable, Dict, List, Optional, Tuple

import typer

from shiftwork.cli import follow, parse, render, session
from shiftwork.cli.failures import usage

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
        None, "--gpus-per-node", min=0, help="Left out: whole nodes. 0: CPU only."
    ),
    priority: str = typer.Option("", "--priority", help="extreme_high ... idle, auto; normal."),
    group: str = typer.Option("", "--group", help="Group of nodes; default."),
    env: Optional[List[str]] = typer.Option(None, "--env", metavar="K=V", help="Repeatable."),
    workdir: str = typer.Option(
        "", "--workdir", help="Left out: here, if the server is on this machine."
    ),
    label: Optional[List[str]] = typer.Option(None, "--label", metavar="K=V", help="Repeatable."),
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
    file: Optional[Path] = typer.Option(None, "--file", help="A task in YAML or JSON instead."),
    follow_it: bool = typer.Option(
        False, "-f", "--follow", help="Show states and output until the end; the task's exit code."
    ),
) -> None:
    """Submit a task. Prints its id."""
    now = session.current()
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
        "CMD": command,
    }
    target = now.target()
    if file is not None:
        clash = [option for option, value in given.items() if value not in (None, "", [])]
        if clash:
            raise usage(
                f"--file comes instead of {', '.join(clash)}",
                where=str(file),
                fix="put it into the file, or leave --file out",
            )
        body = read_file(file)
    else:
        body = _body(given)
    # Pods have a file system of their own, however near the server seems.
    if target.is_local and "working_directory" not in body and "pod" not in body:
        body["working_directory"] = str(Path.cwd())
    api = now.api()
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


def _body(given: Dict[str, Any]) -> Dict[str, Any]:
    """The options as the API's new task. Only what was given: the platform fills in the rest."""
    if not given["CMD"]:
        raise usage(
            "there is no command to run",
            fix="write: shiftwork submit [options] -- CMD ..., or give --file",
        )
    body: Dict[str, Any] = {"command": list(given["CMD"])}
    for option, (field, read) in FIELDS.items():
        if given[option] not in (None, "", []):
            body[field] = read(given[option], option)
    preemption = _preemption(given["--preempt"], given["--ack-deadline"])
    if preemption:
        body["preemption"] = preemption
    pod = {
        field: read(given[option], option)
        for option, (field, read) in POD_FIELDS.items()
        if given[option] not in (None, "", [])
    }
    if pod:
        body["pod"] = pod
    return body


def _as_given(value: Any, option: str) -> Any:  # noqa: ANN401 - the option's own type
    del option
    return value


def _directory(value: str, option: str) -> str:
    del option
    return os.path.abspath(value)  # noqa: PTH100 - keeps links


def _retries(value: int, option: str) -> Dict[str, int]:
    del option
    return {"max_retries": value}


# Each option: the API's field, and how the text becomes its value.
FIELDS: Dict[str, Tuple[str, Callable[..., Any]]] = {
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
    "--retries": ("retry", _retries),
    "--max-run-time": ("max_run_seconds", parse.duration),
    "--fence-after": ("fence_after_seconds", parse.duration),
}


def _template(path: Path, option: str) -> Dict[str, Any]:
    del option
    # A whole Pod is fine, too: what kind of object it is need not be said.
    found = read_file(path, "pod template", "spec: {...}")
    return {name: part for name, part in found.items() if name not in ("apiVersion", "kind")}


# The same of what is asked of pods.
POD_FIELDS: Dict[str, Tuple[str, Callable[..., Any]]] = {
    "--image": ("image", _as_given),
    "--mount": ("storage", _as_given),
    "--shm": ("shm_bytes", parse.size),
    "--resource": ("resources", parse.pairs),
    "--pod-template": ("template", _template),
}


def _preemption(mode: str, deadline: str) -> Dict[str, Any]:
    found: Dict[str, Any] = {}
    if mode:
        if not _PREEMPT.fullmatch(mode):
            raise usage(
                f"{mode!r} is no way to preempt",
                where="--preempt",
                fix="choose sdk, signal, signal:TERM (any signal's name) or kill",
            )
        word, _, signal = mode.partition(":")
        found["mode"] = word
        if signal:
            found["signal"] = signal
    if deadline:
        found["ack_deadline_seconds"] = parse.duration(deadline, "--ack-deadline")
    return found


def read_file(path: Path, what: str = "task", such_as: str = "command: [...]") -> Dict[str, Any]:
    """A task from a file, in the API's own fields. JSON always, YAML where PyYAML is."""
    try:
        if path.stat().st_size > FILE_BYTES_MAX:
            raise usage(f"the file is larger than {FILE_BYTES_MAX} bytes", where=str(path))
        text = path.read_text(encoding="utf-8")
    except OSError as error:
        raise usage(f"the file cannot be read: {error.strerror}", where=str(path)) from error
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
