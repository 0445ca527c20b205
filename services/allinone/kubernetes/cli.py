"""``shiftwork k8s values|dryrun|up|status|down``: the platform on a cluster, by its charts.

Joined to the command line by the entry point. Kept light: what talks to a cluster is imported only
by the command that does.
"""

from __future__ import annotations

import contextlib
import tempfile
from collections import Counter
from collections.abc import Generator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from shiftwork.cli import parse, render, session
from shiftwork.cli.failures import Failure, usage

from services.allinone.kubernetes.choices import Choices, commented, nested
from services.allinone.kubernetes.options import Target, Wanted, taking

if TYPE_CHECKING:
    from services.allinone.kubernetes.helm import Values
    from services.allinone.kubernetes.preflight import Wants

UP_SECONDS_MAX = "15m"


def register(app: session.App) -> None:
    """Add the commands."""
    one = session.App(name="k8s", help="The platform on Kubernetes.", no_args_is_help=True)
    for name, command in COMMANDS.items():
        one.command(name)(command)
    app.add_typer(one)


@taking(choices=Choices)
def values(choices: Choices) -> None:
    """Print a commented values file with these choices, to be edited and given to `up -f`."""
    found = choices.values()
    if session.current().json:
        render.document(nested(found))
    else:
        render.block(commented(found).rstrip("\n"))


@contextlib.contextmanager
def _as_values(wanted: Wanted, choices: Choices) -> Generator[Values]:
    """Combine values in helm's order: options override files, single values override options."""
    from services.allinone.kubernetes.helm import Values  # noqa: PLC0415 - see the top

    with tempfile.TemporaryDirectory(prefix="shiftwork-values-") as folder:
        own = Path(folder) / "options.yaml"
        own.write_text(commented(choices.values()))
        files = wanted.files or []
        # Without files it adds to the values of the release; files are the whole of it.
        yield Values((*files, own), tuple(wanted.sets or ()), added=not files)


@taking(target=Target, wanted=Wanted, choices=Choices)
def dryrun(target: Target, wanted: Wanted, choices: Choices) -> None:
    """Show what `up` would create and change, as the cluster sees it. Nothing is changed."""
    from services.allinone.kubernetes import charts, dryrun  # noqa: PLC0415 - see the top

    folder = charts.find(wanted.charts)
    with charts.assembled(folder) as chart, _as_values(wanted, choices) as given:
        changes = dryrun.changes(target, chart, given)
    if session.current().json:
        render.document({"changes": [each.document() for each in changes]})
    else:
        rows = [
            (each.kind, each.object, each.name, each.namespace, each.detail)
            for each in changes
            if each.kind != "same" or session.current().verbose
        ]
        render.table(("CHANGE", "KIND", "NAME", "NAMESPACE", "WHAT"), rows, "nothing would change")
        counts = Counter(each.kind for each in changes)
        render.note(", ".join(f"{kind}: {count}" for kind, count in sorted(counts.items())))
    refused = [each for each in changes if each.kind == "refused"]
    if refused:
        raise Failure(
            f"the cluster refuses {render.counted(len(refused), 'object')}: {refused[0].detail}",
            where=f"{refused[0].object} {refused[0].name}",
            fix="correct the values, or get the rights that are named",
        )


@taking(target=Target, wanted=Wanted, choices=Choices)
def up(  # noqa: PLR0917 - a command: every parameter is an option by name
    target: Target,
    wanted: Wanted,
    choices: Choices,
    timeout: Annotated[str, typer.Option(help="How long to wait until it serves.")] = (
        UP_SECONDS_MAX
    ),
    no_wait: Annotated[bool, typer.Option("--no-wait", help="Return when all is made.")] = False,
    no_preflight: Annotated[
        bool, typer.Option("--no-preflight", help="Do not check the cluster first.")
    ] = False,
) -> None:
    """Install the platform, or change it, and wait until it serves.

    On a release that is there, options add to its values; files (-f) replace them.
    """
    from services.allinone.kubernetes import charts, installing, reach  # noqa: PLC0415 - the top
    from services.allinone.kubernetes.helm import Helm  # noqa: PLC0415
    from services.allinone.kubernetes.kubectl import Kubectl  # noqa: PLC0415

    seconds = parse.duration(timeout, "--timeout")
    folder = charts.find(wanted.charts)
    if not no_preflight:
        _preflight(target, _wants(target, wanted, choices))
    kubectl, helm = Kubectl(target), Helm(target)
    with charts.assembled(folder) as chart, _as_values(wanted, choices) as given:
        render.note(f"installing release {target.release} ({target.where})")
        helm.upgrade(chart, given)
    it = reach.installed(target, helm)
    if not no_wait:
        with render.Progress() as progress:
            installing.wait(kubectl, render.note, progress.show, seconds)
        installing.reopen(kubectl, it, render.note)
    file = reach.keep_context(it, reach.admin_token(kubectl, it))
    if session.current().json:
        found = {"release": target.release, "namespace": target.namespace, "context": it.context}
        render.document({**found, "url": it.url or None, "admin_token_file": str(file)})
        return
    render.line(f"Shiftwork is {'installed' if no_wait else 'ready'} ({target.where})")
    render.line(f"Administrator's token: {file} (context {it.context}, now the current one)")
    if it.url:
        render.line(f"Its API: {it.url}")
    else:
        render.line(f"To reach its API from here, leave this running: {it.forward}")
    render.line("Then: `shiftwork nodes`, `shiftwork user add NAME`, `shiftwork submit -- COMMAND`")


def _preflight(target: Target, wants: Wants) -> None:
    """Print warnings; raise Failure for what cannot work."""
    from services.allinone.kubernetes import preflight  # noqa: PLC0415 - see the top

    findings = preflight.examine(target, wants)
    for finding in findings:
        if finding.level == "ok":
            render.detail("\n".join(finding.lines()))
        elif finding.level == "warn":
            render.warning(finding.what + (f" ({finding.fix})" if finding.fix else ""))
    bad = [each for each in findings if each.level == "bad"]
    if bad:
        more = f", and {len(bad) - 1} more: `shiftwork doctor --kubernetes`" if bad[1:] else ""
        raise Failure(
            bad[0].what + more, where=target.where, fix=bad[0].fix, code=preflight.exit_code(bad)
        )


def _wants(target: Target, wanted: Wanted, choices: Choices) -> Wants:
    """What an installation with these values will need; files are read for it, too."""
    import yaml  # noqa: PLC0415 - see the top

    from services.allinone.kubernetes.preflight import reported_before, wants_of  # noqa: PLC0415

    files = wanted.files or []
    documents: list[dict[str, Any]] = [] if files else reported_before(target)
    for file in files:
        try:
            documents.append(parse.fields(yaml.safe_load(file.read_text())))
        except (OSError, yaml.YAMLError) as problem:
            raise usage(f"{problem}", where=str(file), fix="correct the file") from problem
    return wants_of([*documents, nested(choices.values())])


@taking(target=Target)
def status(target: Target) -> None:
    """Show the release, its services and their leaders, nodes and tasks. Exit 1: not ready."""
    from services.allinone.kubernetes import status  # noqa: PLC0415 - see the top

    found = status.document(target)
    if session.current().json:
        render.document(found)
    else:
        _show(found)
    if not found["ready"]:
        raise typer.Exit(1)


def _show(found: dict[str, Any]) -> None:
    it = found["release"]
    render.line(
        f"release {it['name']} in {it['namespace']}: {it['status']}, revision {it['revision']}"
    )
    render.table(
        ("SERVICE", "READY", "RESTARTS", "LEADER", "PROBLEM"),
        [
            (
                each["name"],
                f"{each['ready']}/{each['wanted']}",
                str(each["restarts"]),
                each["leader"] or "",
                "; ".join(each["problems"][:1]),
            )
            for each in found["services"]
        ],
        "no services",
    )
    if found["problem"]:
        render.warning(found["problem"])
        return
    nodes, tasks = found["nodes"], found["tasks"]
    render.line(
        f"nodes: {nodes['ready']} of {nodes['seen']} ready, {nodes['schedulable']} schedulable; "
        f"GPUs: {nodes['free_gpus']} of {nodes['gpus']} free"
    )
    counts = ", ".join(f"{count} {state}" for state, count in sorted(tasks.items()))
    render.line(f"tasks: {counts or 'none live'}")


@taking(target=Target)
def down(
    target: Target,
    now: Annotated[
        bool, typer.Option("--now", help="Do not let running tasks save first.")
    ] = False,
    purge: Annotated[
        bool, typer.Option("--purge", help="Delete volumes, Secrets and tasks' namespace, too.")
    ] = False,
) -> None:
    """Remove the platform: running tasks save and leave first; data stays for the next `up`."""
    from services.allinone.kubernetes import reach, removing  # noqa: PLC0415 - see the top
    from services.allinone.kubernetes.helm import Helm  # noqa: PLC0415
    from services.allinone.kubernetes.kubectl import Kubectl  # noqa: PLC0415

    kubectl, helm = Kubectl(target), Helm(target)
    if helm.release() is None:
        render.note(f"there is no release {target.release} ({target.where})")
        it = reach.removed(target)
    else:
        it = reach.installed(target, helm)
        if not now:
            removing.save_first(kubectl, it, render.note)
        render.note(f"removing release {target.release}")
        helm.uninstall()
        removing.sweep(kubectl, it, render.note)
    left = removing.kept(kubectl, it)
    if purge:
        removing.purge(kubectl, left, render.note)
        left = []
    if session.current().json:
        render.document({"kept": [each.document() for each in left], "purged": purge})
        return
    for each in left:
        render.line(f"kept: {each.line}")
    if left:
        render.note("the next `up` finds it; to delete it for good: shiftwork k8s down --purge")
    else:
        render.note("nothing is left")


COMMANDS = {"values": values, "dryrun": dryrun, "up": up, "status": status, "down": down}
