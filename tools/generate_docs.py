"""Generated files: the pages of docs/generated, docs/benchmarks.md, the users of NATS servers, the
charts' schemas, the client library's methods. `make gen` writes them.

The sources are the tables that the code itself uses, so the pages are always right, and a NATS
server lets a service publish only what its wiring declares.
"""

from __future__ import annotations

import re
from pathlib import Path

from fastapi.routing import APIRoute, APIWebSocketRoute

from libs.contracts.registry import ROUTES
from libs.contracts.routes import Kind
from libs.service.settings import BaseServiceSettings
from services.allinone import nats_config
from services.allinone.composition import WIRINGS
from services.allinone.provision import PREFIX, ProvisionSettings
from services.gateway.api.app import PREFIX as API_PREFIX
from services.gateway.api.app import ROUTERS
from services.gateway.api.deps import action_of
from services.gateway.permissions import Action, Reach, Role
from services.launcher.domain import exits as launcher_exits
from services.launcher.domain import fault_classes, grace_periods, rank_faults
from services.launcher.domain import run_lifecycle as launcher_lifecycle
from services.log_collector.agent.settings import AgentSettings
from services.scheduler.domain.model import lifecycle as scheduler_lifecycle
from services.submit.domain import warnings as task_warnings
from tools import (
    benchmark_page,
    cli_choices,
    client_library,
    dashboards,
    events_page,
    import_graph,
    metrics_page,
    policy_schemas,
    retention_page,
)
from tools.chart_schemas import schemas
from tools.settings_tables import settings_table
from tools.task_forms import NOTE
from tools.task_forms import files as task_forms

ROOT = Path(__file__).resolve().parent.parent
GENERATED = ROOT / "docs" / "generated"
BENCHMARKS = ROOT / "docs" / "benchmarks.md"
ALERTS = ROOT / "deploy" / "k8s" / "charts" / "shiftwork" / "files" / "alerts.yaml"
NATS_ACCOUNTS = ROOT / "deploy" / "k8s" / "charts" / "nats" / "files" / "accounts.conf"
NATS_SERVER = ROOT / "docker" / "nats-platform.conf"
KINDS = {
    Kind.EVENT: "Events (durable, many hearers, never refused)",
    Kind.COMMAND: "Commands (one receiver, answered, may be refused)",
    Kind.TELEMETRY: "Telemetry (bounded, best effort)",
    Kind.SESSION: "Sessions (between two services, not stored, ended by a loss)",
    Kind.SAMPLE: "Samples (measurements, not stored by the bus, a loss is a gap)",
    Kind.HINT: "Hints (between the processes of one service, not stored, a loss costs a poll)",
}


def consumers_of_events() -> dict[str, list[str]]:
    """Event name -> services that consume it, from their handlers."""
    found: dict[str, list[str]] = {}
    for service in WIRINGS:
        for kind in (*service.consumes, *service.hears):
            found.setdefault(kind.__name__, []).append(service.name)
    return found


def messages_page() -> str:
    """All messages of the platform as tables."""
    consumers = consumers_of_events()
    lines = [
        "# Messages",
        "",
        "Fields and comments: `proto/`. Wire: JSON, CloudEvents headers.",
        "",
    ]
    for kind, title in KINDS.items():
        lines += [
            f"## {title}",
            "",
            "| message | subject | owner | consumed by |",
            "| --- | --- | --- | --- |",
        ]
        for message, route in ROUTES.items():
            if route.kind is kind:
                readers = ", ".join(consumers.get(message.__name__, [])) or (
                    "live readers" if kind is Kind.TELEMETRY else route.owner
                )
                lines.append(
                    f"| {message.__name__} | `{route.subject}` | {route.owner} | {readers} |"
                )
        lines.append("")
    return NOTE + "\n".join(lines)


def warnings_page() -> str:
    """What a submission warns of."""
    return (
        "# Warnings\n\nA task with one of these is accepted."
        " [What shows them](../guide.md#warnings)\n\n" + task_warnings.render_markdown()
    )


SITE, SITE_PAGE = "as the site has set", "../operations.md#whose-tasks-users-see"
REACHES = {
    Reach.NONE: "-",
    Reach.OWN: "own",
    Reach.TEAM: "team",
    Reach.SITE: "site",
    Reach.ALL: "all",
}
# Actions that a query of another action's route asks for.
BY_QUERY = {Action.READ_TEAM_USAGE: "`GET /v1/usage?team=`"}


def permissions_page() -> str:
    """Each action with the scope that a token needs, the reach of each role, and its routes."""
    routes = {action: [BY_QUERY[action]] if action in BY_QUERY else [] for action in Action}
    for router in ROUTERS:
        for route in router.routes:
            if isinstance(route, APIRoute | APIWebSocketRoute):
                methods = sorted(route.methods) if isinstance(route, APIRoute) else ["WEBSOCKET"]
                action, _ = action_of(route.endpoint)
                routes[action] += [f"`{method} {API_PREFIX}{route.path}`" for method in methods]
    lines = [
        "# Permissions",
        "",
        "`own`: the caller's own tasks, tokens and account; `all`: everybody's; `-`: refused.",
        "`team`: also what is of the caller's present team.",
        f"`site`: own tasks, those of the team as well, or all ([{SITE}]({SITE_PAGE})).",
        "A token without scopes is good for all that its user may do. `read` is in every token.",
        "",
        f"| action | scope | {' | '.join(Role)} | routes |",
        f"| --- | --- | {' | '.join('---' for _ in Role)} | --- |",
    ]
    for action, names in routes.items():
        if action is Action.BE_A_RUN:
            continue
        reach = " | ".join(REACHES[action.value.reach(role)] for role in Role)
        name = action.name.lower().replace("_", " ")
        lines.append(f"| {name} | {action.value.scope} | {reach} | {', '.join(sorted(names))} |")
    runs = ", ".join(sorted(routes[Action.BE_A_RUN]))
    lines += ["", f"Run tokens, and no others, are good for {runs}."]
    return NOTE + "\n".join(lines) + "\n"


def settings_page() -> str:
    """Every environment variable of every service."""
    lines = [
        "# Settings",
        "",
        "Every service reads its settings from environment variables and checks them at its start.",
        "`shiftwork up` gives its services what is needed on one machine; this page is for running",
        "a service by itself: `python -m services.NAME`. A list or a table is written as JSON.",
        "",
        "## Every service",
        "",
        "The name begins with the service's own prefix, such as `SHIFTWORK_SUBMIT_`.",
        "",
        *settings_table(BaseServiceSettings, "…"),
    ]
    for wiring in WIRINGS:
        prefix = str(wiring.settings.model_config.get("env_prefix", ""))
        rows = settings_table(wiring.settings, prefix)
        lines += ["", f"## {wiring.name}", "", *rows]
    lines += [
        "",
        "## log agent",
        "",
        "`python -m services.log_collector.agent` collects the output of pods on a node.",
        "",
        *settings_table(AgentSettings, str(AgentSettings.model_config["env_prefix"])),
        "",
        "## provision",
        "",
        "`python -m services.allinone.provision` makes servers of one's own ready.",
        "",
        *settings_table(ProvisionSettings, PREFIX),
    ]
    return NOTE + "\n".join(lines) + "\n"


def alerts() -> str:
    """The alerts as they are written by hand, with the number of services filled in."""
    rule, number = r"(\(shiftwork_leads\)\) < )\d+", len(WIRINGS)
    return re.sub(rule, rf"\g<1>{number}", ALERTS.read_text())


def pages() -> dict[Path, str]:
    """Every generated file with its text."""
    about = events_page.comments()
    return {
        GENERATED / "lifecycle.md": NOTE
        + scheduler_lifecycle.render()
        + "\n"
        + launcher_lifecycle.render_markdown()
        + "\n## How a run ended\n\n"
        + launcher_exits.render_markdown()
        + "\n## What can be wrong with a rank or a launch\n\n"
        + rank_faults.render_markdown()
        + "\n## Classes of failures\n\n"
        + fault_classes.render_markdown()
        + "\n## Grace periods of runs that the launcher ends\n\n"
        + grace_periods.render_markdown(),
        GENERATED / "warnings.md": NOTE + warnings_page(),
        GENERATED / "permissions.md": permissions_page(),
        GENERATED / "messages.md": messages_page(),
        GENERATED / "settings.md": settings_page(),
        GENERATED / "retention.md": NOTE + retention_page.page(),
        GENERATED / "metrics.md": NOTE + metrics_page.page(),
        GENERATED / "asyncapi.json": events_page.asyncapi(about),
        GENERATED / "events.md": NOTE + events_page.page(about, consumers_of_events()),
        BENCHMARKS: NOTE + benchmark_page.page(),
        ALERTS: alerts(),
        NATS_ACCOUNTS: nats_config.accounts_template(WIRINGS),
        NATS_SERVER: nats_config.server(WIRINGS, cluster=False),
        GENERATED / "imports.md": NOTE + import_graph.page(),
        **schemas(),
        **task_forms(ROOT),
        **policy_schemas.files(ROOT),
        **client_library.files(ROOT),
        **cli_choices.files(ROOT),
        **dashboards.files(ROOT),
    }


def main() -> None:
    """Write the files."""
    for path, text in pages().items():
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)


if __name__ == "__main__":
    main()
