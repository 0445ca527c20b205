from __future__ import annotations

from pathlib import Path

import pytest
from pydantic import ValidationError

from services.log_collector.domain import OutputKey
from services.log_collector.main import WIRING, source_of
from services.log_collector.sources.files import FileSource
from services.log_collector.sources.kubernetes import KubernetesSource
from services.log_collector.sources.kubernetes_options import pod_name
from tests.kit.memory import MemoryPlatform
from tests.services.log_collector.collector_harness import settings_with


def test_files_need_their_folder() -> None:
    assert isinstance(source_of(settings_with()), FileSource)
    with pytest.raises(
        ValidationError, match="SOURCE is files, and SHIFTWORK_LOG_COLLECTOR_RUNS_DIR is not set"
    ):
        settings_with(runs_dir=None)


def test_pods_need_the_agents_token_and_no_folder() -> None:
    with pytest.raises(ValidationError, match="AGENT_TOKEN_FILE is not set"):
        settings_with(source="kubernetes", runs_dir=None)
    made = settings_with(source="kubernetes", runs_dir=None, agent_token_file="/run/token")
    cluster = made
    assert (cluster.kube_namespace, cluster.agent_namespace) == ("shiftwork-tasks", "shiftwork")
    assert (cluster.agent_port, cluster.agent_token_file) == (8650, Path("/run/token"))
    assert cluster.agent_label == "app.kubernetes.io/component=log-agent"


def test_the_service_runs_the_background_work_of_its_source() -> None:
    made = settings_with(source="kubernetes", runs_dir=None, agent_token_file="/run/token")
    assert len(MemoryPlatform().build(WIRING, made).tasks) == 1
    assert MemoryPlatform().build(WIRING, settings_with()).tasks == ()
    assert isinstance(source_of(made), KubernetesSource)


def test_a_pod_has_the_launchers_name() -> None:
    assert pod_name(OutputKey("t23abc", 4, 11)) == "t23abc-4-11"
