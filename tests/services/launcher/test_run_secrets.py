"""log-collector gets the texts by which the secrets of a run are found, also after its end."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import pytest

from libs.contracts.messages import (
    ExitKind,
    ListSecretForms,
    ListSecretFormsReply,
    RefusalCode,
    Role,
    RunExit,
)
from libs.contracts.run_token import make_run_token
from libs.service.masking import secret_forms
from libs.store.port import Store
from services.launcher import store as tables
from services.launcher.domain.model import PastRun, RunState
from services.launcher.main import WIRING
from services.launcher.run_orders import build_order
from services.launcher.run_secrets import RunSecrets
from tests.kit.clock import START
from tests.kit.launcher_builders import a_run, a_spec
from tests.services.launcher.launcher_harness import SITE
from tests.services.launcher.test_run_orders import hosts_of

if TYPE_CHECKING:
    from libs.service.wiring import Wiring

END = RunExit(attempt=1, kind=ExitKind.OK, exited_at=START)
HERE = replace(SITE, secret_env_patterns=("*TOKEN",))
ROLE = Role(name="worker", replicas=1, command=("train",), env={"DSN": "postgres://other"})
SPEC = a_spec(1).model_copy(
    update={
        "env": {"HF_TOKEN": "hf_Zq3vT8xLw2Rk9", "DSN": "postgres://me", "PLAIN": "not-a-secret"},
        "secret_env": ("DSN",),
        "roles": (ROLE,),
    }
)


@pytest.fixture
def wiring() -> Wiring:
    return WIRING


async def ask(store: Store, attempt: int = 1, task: str = "task") -> ListSecretFormsReply:
    return await RunSecrets(store, HERE).answer(ListSecretForms(task_id=task, attempt=attempt))


async def test_they_are_the_secrets_that_the_process_runtime_masks(store: Store) -> None:
    run = a_run(RunState.RUNNING, spec=SPEC)
    async with store.transaction() as tx:
        tx.put(run)
    forms = set((await ask(store)).forms)
    for rank in build_order(run, hosts_of(run), HERE).ranks:
        assert set(secret_forms([rank.env[name] for name in rank.secrets])) <= forms
    assert b"postgres://me" in forms  # the task's own value, which another role may have
    assert b"not-a-secret" not in forms


async def test_they_are_known_after_the_run_is_forgotten_and_for_earlier_attempts(
    store: Store,
) -> None:
    run = replace(a_run(RunState.EXITED, spec=SPEC), exit=END)
    async with store.transaction() as tx:
        tx.put(run)
    async with store.transaction() as tx:
        await tables.forget(tx, [run], {run.id: None})
    async with store.transaction() as tx:
        past = await tx.get(PastRun, "task")
    assert past is not None
    assert past.forgotten_at
    for attempt in (1, 2):
        forms = (await ask(store, attempt)).forms
        assert b"hf_Zq3vT8xLw2Rk9" in forms
        token = make_run_token(SITE.token_key, replace(run, attempt=attempt).id)
        assert secret_forms([token])[0] in forms


async def test_a_task_that_is_not_known_is_refused(store: Store) -> None:
    async with store.transaction() as tx:
        tx.put(PastRun("old", 1, (), START, END, None, START))
    for task in ("task", "old"):
        reply = await ask(store, task=task)
        assert reply.refusal is not None
        assert reply.refusal.code is RefusalCode.NOT_FOUND
        assert reply.forms == ()
