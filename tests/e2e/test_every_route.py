"""Every route of the running platform, asked what its description allows and what it does not, as
each role, a run and nobody: none of them ever gets an answer 5xx, and each answer is one that the
description has: its status, its content type, its body and its headers."""

from __future__ import annotations

import json
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import pytest
import schemathesis
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st
from hypothesis.errors import Unsatisfiable
from schemathesis import GenerationMode
from schemathesis.core.failures import FailureGroup
from schemathesis.specs.openapi import checks

from tests.e2e.conftest import Shiftwork

pytestmark = [pytest.mark.server, pytest.mark.slow, pytest.mark.timeout(900)]

EXAMPLES = 8
CHECKS = [
    checks.status_code_conformance,
    checks.content_type_conformance,
    checks.response_schema_conformance,
    checks.response_headers_conformance,
]
# Of one operation and role; more would say the same.
FAILURES_MAX = 3
ROLES = ("admin", "operator", "user", "viewer", "run", "nobody")


@dataclass
class Site:
    url: str
    tokens: dict[str, str]
    # Real names for the parameters of paths.
    real: dict[str, str]
    description: dict[str, Any]


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Any:
    """A platform of its own: what is asked here changes quotas, policies, nodes and people."""
    home = tmp_path_factory.mktemp("e")
    user = Shiftwork(home)
    try:
        # Every role reaches what is behind the routes of the task.
        user.bring_up("--visibility", "all")
        yield make_site(user)
    finally:
        user.take_down()


def make_site(user: Shiftwork) -> Site:
    status = user.good("up", "--data", str(user.data), "--detach", "--json").json
    token = Path(status["admin_token_file"]).read_text().strip()
    url = status["url"]
    shown = user.home / "run-token"
    script = f'printf %s "$SHIFTWORK_RUN_TOKEN" > {shown}; sleep 600'
    task = user.submit("--gpus-per-node", "1", "--", "sh", "-c", script)
    with httpx.Client(
        base_url=url, headers={"authorization": f"Bearer {token}"}, trust_env=False
    ) as admin:
        people = {"ann": "user", "olga": "operator", "vic": "viewer"}
        made: dict[str, str] = {}
        for name, role in people.items():
            admin.post("/v1/users", json={"name": name, "role": role}).raise_for_status()
            reply = admin.post("/v1/tokens", json={"user": name}).raise_for_status()
            made[role] = reply.json()["token"]
        spare = admin.post("/v1/tokens", json={"user": "ann"}).raise_for_status().json()
        description = admin.get("/v1/openapi.json").raise_for_status().json()
    until = time.monotonic() + 30
    while not shown.exists() or not shown.read_text():
        assert time.monotonic() < until, "the task did not start"
        time.sleep(0.05)
    tokens = {"admin": token, **made, "run": shown.read_text()}
    real = {"task_id": task, "node_id": "local-0", "name": "ann", "group": "default"}
    return Site(url, tokens, {**real, "token_id": spare["id"]}, description)


@pytest.mark.parametrize("role", ROLES)
def test_no_request_is_answered_with_a_server_error(site: Site, role: str) -> None:
    api = schemathesis.openapi.from_dict(site.description)
    found: list[str] = []
    asked: set[str] = set()
    for result in api.get_all_operations():
        operation = result.ok()
        for mode in GenerationMode:
            ask(site, role, operation, mode=mode, found=found, asked=asked)
    assert found == []
    assert len(asked) == sum(len(methods) for methods in site.description["paths"].values())
    with httpx.Client(base_url=site.url, trust_env=False, timeout=10) as client:
        headers = {"authorization": f"Bearer {site.tokens['admin']}"}
        for path in ("/v1/tasks", "/v1/nodes", "/v1/quotas", "/v1/policies", "/v1/events"):
            page = client.get(path, headers=headers).raise_for_status().json()
            assert "unreadable" not in page, (path, page)


def ask(
    site: Site,
    role: str,
    operation: Any,
    *,
    mode: GenerationMode,
    found: list[str],
    asked: set[str],
) -> None:
    token = site.tokens.get(role)
    headers = {"authorization": f"Bearer {token}"} if token else {}

    @settings(
        max_examples=EXAMPLES,
        deadline=None,
        database=None,
        phases=[Phase.generate],
        derandomize=True,
        suppress_health_check=list(HealthCheck),
    )
    @given(case=operation.as_strategy(generation_mode=mode), real=st.booleans())
    def try_it(case: Any, real: bool) -> None:
        if real and case.path_parameters:
            known = {name: site.real.get(name) for name in case.path_parameters}
            case.path_parameters.update({name: one for name, one in known.items() if one})
        for endless in ("follow", "wait_seconds"):
            (case.query or {}).pop(endless, None)
        case.headers = {
            name: value
            for name, value in (case.headers or {}).items()
            if name.lower() not in ("authorization", "accept")
        }
        response = case.call(base_url=site.url, headers=headers, timeout=15)
        asked.add(operation.label)
        text = response.content[:500].decode(errors="replace")
        if response.status_code >= 500:
            found.append(f"{operation.label} {mode.value}: {response.status_code} {text}")
        elif response.status_code >= 400:
            assert json.loads(response.content)["status"] == response.status_code, text
        try:
            case.validate_response(response, checks=CHECKS)
        except FailureGroup as group:
            label = f"{operation.label} {mode.value}: {response.status_code}"
            if sum(each.startswith(label) for each in found) < FAILURES_MAX:
                found.extend(f"{label} {each}"[:600] for each in group.exceptions)

    try:
        try_it()
    except Unsatisfiable:
        # A route without parameters has no invalid requests.
        asked.add(operation.label)
