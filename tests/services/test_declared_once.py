"""What stands in several places, because one of them cannot read the other, is the same in all."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from shiftwork.cli import choices
from shiftwork.live import Limits

from libs.contracts.messages import TaskSpec
from libs.contracts.services import SERVICES
from libs.contracts.tcp_ports import GATEWAY_PORT
from libs.pods.kubernetes_names import AGENT_PORT, TASKS_NAMESPACE
from libs.service.stream_watch import WARN_SHARE
from services.allinone.composition import WIRINGS
from services.allinone.setting_relations import RELATIONS, Relation, default
from services.gateway.settings import GatewaySettings
from services.scheduler.domain.model.group_policy import PolicySettings
from services.submit.domain.facts import Defaults, Facts
from services.submit.domain.facts import Limits as SpecLimits
from services.submit.domain.fill import fill_in
from services.submit.domain.validate import validate
from tests.kit.builders import a_spec, a_task
from tests.kit.specs import TASK_ID

ROOT = Path(__file__).parents[2]
NAMES = {wiring.name for wiring in WIRINGS}


@pytest.mark.parametrize("names", [SERVICES, choices.SERVICES], ids=["contracts", "command line"])
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
