"""``shiftwork policy show|set|unset|dry-run``: how node groups are shared."""

import json
import re
from typing import Any, Dict, Iterator, List, Optional

import typer

from shiftwork.cli import complete, ids, input_files, parse, render, session, typed
from shiftwork.cli.failures import naming
from shiftwork.client.paths import part

FILE_BYTES_MAX = 262_144
CONTENT_TYPE = "application/yaml"
# What YAML reads as the very same text without quotes.
_BARE = re.compile(r"[a-zA-Z][-a-zA-Z0-9_./]*|\d+(\.\d+)?[smhd]")
_WORDS = frozenset({"true", "false", "yes", "no", "on", "off", "null", "y", "n"})


def register(app: session.App) -> None:
    """Add the commands."""
    policy = session.App(name="policy", help="How node groups are shared.", no_args_is_help=True)
    policy.command("show")(show)
    policy.command("set")(set_file)
    policy.command("unset")(unset)
    policy.command("dry-run")(dry_run)
    app.add_typer(policy)


_FILE = typer.Argument(..., metavar="FILE", help="A policy file, YAML or JSON; - reads it here.")


def show(
    group: Optional[str] = typer.Argument(
        None,
        metavar="[GROUP]",
        help="Left out: every group.",
        autocompletion=complete.groups,
    ),
) -> None:
    """List how the groups are shared; of one group, its policy file with every key."""
    now = session.current()
    if group is not None:
        _show_one(now, now.api().get(f"/v1/policies/{part(group)}"))
        return
    found = now.api().items("/v1/policies")
    if now.json:
        render.document(found)
        return
    render.table(
        (
            render.Column("GROUP", least=8),
            render.Column("POLICY"),
            render.Column("SOURCE", drop=2),
            render.Column("VERSION", drop=3),
            render.Column("VIRTUAL CLUSTERS", drop=1, least=16),
            render.Column("SET BY", drop=5, least=8),
            render.Column("SINCE", drop=4),
        ),
        [_row(policy) for policy in found["items"]],
        "no node groups yet",
    )


def _row(policy: Dict[str, Any]) -> List["str | render.Cell"]:
    return [
        policy["group"],
        policy["policy"],
        policy["source"],
        str(policy["version"]),
        str(len(policy["document"].get("virtual_clusters") or [])),
        policy.get("changed_by") or "",
        render.when(policy.get("changed_at")),
    ]


def _show_one(now: session.Session, policy: Dict[str, Any]) -> None:
    if now.json:
        render.document(policy)
        return
    author = f", set by {policy['changed_by']}" if policy.get("changed_by") else ""
    when = f" {render.ago(policy.get('changed_at'))}" if policy.get("changed_at") else ""
    render.note(f"# version {policy['version']} ({policy['source']}){author}{when}")
    for text in yaml_lines({"groups": {policy["group"]: policy["document"]}}):
        render.line(text)


# The fields are the file's own paths; beside them, what may be forced.
_FIELDS = {"force": "--force"}
_FORCE = typer.Option(False, "--force", help="Accept users, teams and groups that are to come.")


def set_file(file: str = _FILE, force: bool = _FORCE) -> None:
    """Set the policies of a file: all of it or nothing. Groups that it does not name stay."""
    now = session.current()
    data = input_files.read(file, FILE_BYTES_MAX)
    with naming(_FIELDS, file=input_files.name_of(file)):
        path = "/v1/policies" + ("?force=true" if force else "")
        reply = now.api().send_file("PUT", path, data, CONTENT_TYPE)
    _show_applied(now, reply)


def unset(
    group: str = typer.Argument(..., metavar="GROUP", autocompletion=complete.groups),
) -> None:
    """Take away what was set for a group: it has the policy file's policy, or the defaults."""
    now = session.current()
    _show_applied(now, now.api().delete(f"/v1/policies/{part(group)}"))


def _show_applied(now: session.Session, reply: Dict[str, Any]) -> None:
    _warn(reply)
    if now.json:
        render.document(reply)
        return
    for group, version in sorted(reply["versions"].items()):
        news = "" if group in reply["changed"] else ", unchanged"
        render.note(f"{group}: version {version}{news}" if version else f"{group}: nothing was set")


def dry_run(
    file: str = _FILE,
    limit: Optional[int] = typer.Option(
        None, "--limit", min=1, max=1000, help="Name so many tasks."
    ),
    force: bool = _FORCE,
) -> None:
    """Show what would be decided now under the policies of a file."""
    now = session.current()
    data = input_files.read(file, FILE_BYTES_MAX)
    query = ([f"limit={limit}"] if limit else []) + (["force=true"] if force else [])
    path = "/v1/policies:dry-run" + ("?" + "&".join(query) if query else "")
    with naming(_FIELDS, file=input_files.name_of(file)):
        api = now.api()
        reply = api.send_file("POST", path, data, CONTENT_TYPE)
    _warn(reply)
    if now.json:
        render.document(reply)
        return
    names = ids.Names(api, {effect["task"]: effect for effect in reply["effects"]})
    short = ids.shortened(effect["task"] for effect in reply["effects"])
    render.table(
        (
            render.Column("TASK"),
            render.Column("NAME", drop=1, least=12),
            render.Column("OWNER", drop=3, least=8),
            render.Column("GROUP", drop=4, least=8),
            render.Column("NODES", drop=5),
            render.Column("STATE", drop=2),
            render.Column("NOW", least=14),
            render.Column("THEN", least=14),
        ),
        [_effect(effect, short[effect["task"]], names) for effect in reply["effects"]],
        "no decision would be different now",
    )
    if reply["more"]:
        render.note(f"and {render.counted(reply['more'], 'task')} more; --limit N names them")
    changed = [each for each in reply["outlooks"] if each["now"] != each["then"]]
    if changed:
        render.line("")
        render.table(
            ("GROUP", *(name for name, _ in _SUMS)),
            [_outlook(each) for each in changed],
            "",
        )


_SUMS = (
    ("START NOW", "starts"),
    ("START LATER", "promised"),
    ("PREEMPTED", "preemptions"),
    ("WAIT", "waiting"),
    ("GPUS HELD", "gpus_held"),
    ("GPUS HANDED OVER", "gpus_handed_over"),
    ("GPU TIME AT RISK", "gpu_seconds_at_risk"),
)


def _outlook(each: Dict[str, Any]) -> List[str]:
    cells = [each["group"]]
    for _, name in _SUMS:
        before, after = each["now"][name], each["then"][name]
        if name.endswith("_at_risk"):
            before, after = render.span(before), render.span(after)
        cells.append(str(before) if before == after else f"{before} -> {after}")
    return cells


def _effect(effect: Dict[str, Any], short: str, names: ids.Names) -> List["str | render.Cell"]:
    return [
        render.Cell(short, effect["task"]),
        effect["name"],
        effect["owner"],
        effect["group"],
        str(effect["nodes"]),
        effect["state"],
        _verdict(effect["now"], names),
        _verdict(effect["then"], names),
    ]


def _verdict(verdict: Optional[Dict[str, Any]], names: ids.Names) -> str:
    if verdict is None:
        return "as it is"
    reason = parse.fields(verdict.get("reason"))
    text = str(reason.get("text") or reason.get("code") or "")
    text = names.put_into(text) if render.is_narrow() else text
    return f"{verdict['decision']}: {text}" if text else str(verdict["decision"])


def _warn(reply: Dict[str, Any]) -> None:
    for each in reply["warnings"]:
        render.warning(typed.in_commands(f"{each['field']}: {each['message']}; {each['fix']}"))


def yaml_lines(value: object, indent: str = "") -> Iterator[str]:
    """Plain values as YAML, block style: what ``policy set`` reads as the same values."""
    for key, below in parse.fields(value).items():
        yield from _entry(f"{indent}{_scalar(key)}:", below, indent + "  ")
    for below in parse.listed(value):
        lines = list(yaml_lines(below)) if parse.fields(below) else [_scalar(below)]
        yield f"{indent}- {lines[0]}"
        yield from (f"{indent}  {line}" for line in lines[1:])


def _entry(head: str, value: object, indent: str) -> Iterator[str]:
    """A key with what is below it: behind it, or indented under it."""
    items = parse.listed(value)
    if parse.fields(value) or any(parse.fields(each) for each in items):
        yield head
        yield from yaml_lines(value, indent)
    elif isinstance(value, list):
        yield f"{head} [{', '.join(_scalar(each) for each in items)}]"
    else:
        yield f"{head} {_scalar(value)}"


def _scalar(value: object) -> str:
    """JSON is YAML; words that mean nothing else stand without quotes."""
    if isinstance(value, str) and _BARE.fullmatch(value) and value.lower() not in _WORDS:
        return value
    return json.dumps(value, ensure_ascii=False)
