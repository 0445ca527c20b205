"""What stands in several places, because one of them cannot read the other, is the same in all."""

from __future__ import annotations

import re
from collections.abc import Collection
from pathlib import Path
from typing import get_args

import pytest
from shiftwork.cli import server_choices
from shiftwork.live import Limits

from libs.contracts.enum_words import OccasionWord
from libs.contracts.messages import GpuValues, RankValues, TaskSpec
from libs.contracts.registry import ROUTES
from libs.contracts.routes import Kind
from libs.contracts.services import SERVICES
from libs.contracts.tcp_ports import GATEWAY_PORT
from libs.pods.kubernetes_names import AGENT_PORT, TASKS_NAMESPACE
from libs.service.stream_watch import WARN_SHARE
from services.allinone.composition import WIRINGS
from services.allinone.setting_relations import RELATIONS, Relation, default
from services.gateway.maintenance import OWNERS as REEMITTING
from services.gateway.settings import GatewaySettings
from services.log_collector.error_lines import PATTERNS
from services.log_collector.settings import LogCollectorSettings
from services.monitor.abnormal.rules_file import ActionWord
from services.monitor.domain.abnormal_rules import RULES
from services.scheduler.domain.model.group_policy import PolicySettings
from services.submit.domain.facts import Defaults, Facts
from services.submit.domain.facts import Limits as SpecLimits
from services.submit.domain.fill import fill_in
from services.submit.domain.validate import validate
from tests.kit.builders import a_spec, a_task
from tests.kit.specs import TASK_ID

ROOT = Path(__file__).parents[2]
NAMES = {wiring.name for wiring in WIRINGS}


@pytest.mark.parametrize(
    "names", [SERVICES, server_choices.SERVICES], ids=["contracts", "command line"]
)
def test_every_list_of_services_names_all_of_them(names: tuple[str, ...]) -> None:
    assert sorted(names) == sorted(NAMES)


@pytest.mark.parametrize(
    ("path", "pattern"),
    [
        ("docker/secrets.sh", r"services=\(([\w ]+)\)"),
        ("deploy/k8s/charts/nats/templates/_config.tpl", r"\[admin, ([\w, ]+)\]"),
        ("services/allinone/kubernetes/choices.py", r"a key per service \(([\w, ]+)\)"),
        ("deploy/k8s/package", r"for chart in common ([\w -]+) nats postgres shiftwork;"),
        (".importlinter", r"type = independence\nmodules =\n((?:    services\.\w+\n)+)"),
    ],
)
def test_every_text_that_lists_the_services_names_all_of_them(path: str, pattern: str) -> None:
    found = re.search(pattern, (ROOT / path).read_text())
    assert found
    words = found[1].replace("services.", "").replace("-", "_")
    assert sorted(re.findall(r"\w+", words)) == sorted(NAMES)


def test_every_page_that_lists_most_services_names_all_of_them() -> None:
    pages = [ROOT / "README.md", *(ROOT / "docs").glob("*.md"), *ROOT.glob("*s/*/README.md")]
    name = rf"`?\b({'|'.join(NAMES)})\b`?"
    a_list = re.compile(rf"(?:{name}(?:, and|,| and)\s+){{4,}}{name}")
    lists = {
        f"{page.relative_to(ROOT)}: {found[0]}": found[0]
        for page in pages
        for found in a_list.finditer(page.read_text().replace("-", "_"))
    }
    assert len(lists) >= 2
    assert [
        where for where, words in lists.items() if set(re.findall(r"\w+", words)) - {"and"} != NAMES
    ] == []


@pytest.mark.parametrize(
    ("page", "begins", "names"),
    [
        ("monitoring.md", "| occasion |", get_args(OccasionWord)),
        ("monitoring.md", "| rule | a task |", RULES),
        ("monitoring.md", "| action | what happens |", get_args(ActionWord)),
        ("guide.md", "| signal | of a rank |", {*RankValues.model_fields, *GpuValues.model_fields}),
        ("logs.md", "A name that is built in", PATTERNS),
    ],
)
def test_a_list_that_a_page_has_is_that_of_the_code(
    page: str, begins: str, names: Collection[str]
) -> None:
    text = (ROOT / "docs" / page).read_text()
    listed = text[text.index(begins) :].partition("\n\n")[0]
    # Of a table the first column; of a sentence what stands in its parentheses.
    heads = re.findall(r"^\|([^|]*)\|", listed, re.MULTILINE) or re.findall(r"\((.*?)\)", listed)
    assert set(re.findall(r"`([\w-]+)`", " ".join(heads))) == set(names)


@pytest.mark.parametrize(
    ("page", "pattern"),
    [
        ("guide.md", r"Output is kept for (\d+) days"),
        ("kubernetes.md", r"holds the output of (\d+) days"),
        ("logs.md", r"dropped after (\d+) days \(`KEEP_DAYS`\)"),
        ("operations.md", r"kept output of tasks, .*, for (\d+) days"),
        ("operations.md", r"kept for \| [^|]*, (\d+) days"),
    ],
)
def test_pages_name_the_default_for_how_long_output_is_kept(page: str, pattern: str) -> None:
    found = re.findall(pattern, (ROOT / "docs" / page).read_text())
    days = LogCollectorSettings.model_fields["keep_days"].default
    assert [float(each) for each in found] == [days]


@pytest.mark.parametrize("service", SERVICES)
def test_the_readme_of_a_service_names_its_commands(service: str) -> None:
    readme = (ROOT / "services" / service / "README.md").read_text()
    owned = {
        message.__name__
        for message, route in ROUTES.items()
        if route.kind is Kind.COMMAND and route.owner == service
    }
    if service in REEMITTING:
        owned.add("Reemit")
    assert {name for name in owned if f"`{name}`" not in readme} == set()


def test_the_share_from_which_a_stream_is_filling_is_the_same_for_the_alert_and_operators() -> None:
    alerts = (ROOT / "deploy/k8s/charts/shiftwork/files/alerts.yaml").read_text()
    assert f"(shiftwork_event_stream_limit_bytes) > 0) > {WARN_SHARE}\n" in alerts
    operations = (ROOT / "docs/operations.md").read_text()
    assert (
        f"From {WARN_SHARE:.0%}".replace("%", " %") + " on `/readyz` of the gateway" in operations
    )


def test_a_batch_of_metrics_has_no_more_names_than_the_gateway_takes() -> None:
    most = GatewaySettings.model_fields["metric_names_max"].default
    assert Limits().metrics_batch_names_max == most


@pytest.mark.parametrize(("asked", "given"), [(7000.0, 7000.0), (0.0, 45.0)])
def test_a_run_gets_the_whole_time_to_save_that_submit_accepted(asked: float, given: float) -> None:
    defaults = Defaults(default_ack_deadline_seconds=45.0)
    spec = fill_in(a_spec(ack_seconds=asked), task_id=TASK_ID, defaults=defaults)
    limits = SpecLimits(ack_deadline_seconds_max=7200.0)
    accepted = validate(spec, owner="ann", team="", facts=Facts(), limits=limits)
    assert isinstance(accepted, TaskSpec), accepted
    assert a_task(spec=accepted).ack_seconds(PolicySettings()) == given


def test_a_row_without_a_time_to_save_gets_the_default_of_the_field() -> None:
    assert a_task(spec=a_spec(ack_seconds=0.0)).ack_seconds(PolicySettings()) == 60.0


@pytest.mark.parametrize(
    ("path", "pattern", "value"),
    [
        ("libs/sdk/shiftwork/cli/contexts.py", r"http://127.0.0.1:(\d+)", GATEWAY_PORT),
        ("deploy/k8s/charts/gateway/templates/gateway.yaml", r'"port" (\d+)', GATEWAY_PORT),
        ("deploy/k8s/charts/common/templates/_defaults.tpl", r"gateway\.%s:(\d+)", GATEWAY_PORT),
        ("deploy/k8s/charts/shiftwork/templates/tasks.yaml", r"port: (\d{4})", GATEWAY_PORT),
        ("docker/compose.yaml", r"gateway:(\d+)", GATEWAY_PORT),
        ("deploy/k8s/charts/log-collector/templates/agent.yaml", r"[pP]ort\"?:? (\d+)", AGENT_PORT),
        (
            "deploy/k8s/charts/log-collector/templates/log-collector.yaml",
            r'"ports" \(list \(dict "port" (\d+)',
            AGENT_PORT,
        ),
        (
            "deploy/k8s/charts/common/templates/_defaults.tpl",
            r"namespace: (shiftwork-\w+)",
            TASKS_NAMESPACE,
        ),
        (
            "deploy/k8s/charts/shiftwork/values.yaml",
            r"namespace: (shiftwork-\w+)",
            TASKS_NAMESPACE,
        ),
    ],
)
def test_files_that_read_no_python_have_its_ports_and_namespace(
    path: str, pattern: str, value: object
) -> None:
    found = re.findall(pattern, (ROOT / path).read_text())
    assert set(found) == {str(value)}


@pytest.mark.parametrize("relation", RELATIONS)
def test_the_defaults_of_different_services_have_the_right_order(relation: Relation) -> None:
    assert default(*relation.longer) > default(*relation.shorter)
