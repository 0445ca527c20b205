"""The way back after PostgreSQL was restored: nodes and clusters remember a later epoch."""

from __future__ import annotations

import asyncio
from pathlib import Path
from random import Random
from typing import TYPE_CHECKING, Any, cast

import pytest

from libs.contracts.ids import RunId
from libs.service.clock import SystemClock
from libs.store.connections import Address
from libs.store.migrate import upgrade
from libs.store.sql import SqlStore
from services.launcher import raise_epoch
from services.launcher.domain.model import NodeRow
from services.launcher.main import WIRING
from services.launcher.runtimes.fake import FakeRuntime
from services.launcher.runtimes.fake_cluster import FakeCluster
from services.launcher.runtimes.port import RuntimeDeniedError
from tests.kit.clock import START
from tests.kit.launcher_builders import KEY, a_node

if TYPE_CHECKING:
    from tests.kit.postgres import Database


RUN = RunId("task", 1)


@pytest.mark.server
async def test_a_launcher_with_a_restored_database_commands_its_nodes_again(
    database: Database,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    role = await database.role("launcher")
    for name, text in (("password", role.password), ("key", KEY.decode())):
        (tmp_path / name).write_text(text)
    for name, value in {
        "DATABASE_URL": role.url,
        "DATABASE_PASSWORD_FILE": tmp_path / "password",
        "RUN_TOKEN_KEY_FILE": tmp_path / "key",
        "NATS_URL": "nats://127.0.0.1",
    }.items():
        monkeypatch.setenv(f"SHIFTWORK_LAUNCHER_{name}", str(value))
    address = Address(role.url, role.password)
    await upgrade(address, WIRING.tables, WIRING.migrations)
    cluster = FakeCluster(
        (),
        platform=cast("Any", None),
        script_of=cast("Any", None),
        now=SystemClock().now,
        rng=Random(1),
    )
    former, restored = FakeRuntime(cluster), FakeRuntime(cluster)
    await former.lead(57)
    store = SqlStore(
        address, WIRING.tables, clock=SystemClock(), source="launcher", new_id=lambda: "e"
    )
    leading = await store.lead()
    await restored.lead(leading.epoch)
    with pytest.raises(RuntimeDeniedError):
        await restored.end(RUN, frozenset(), grace_seconds=0)
    async with store.transaction(epoch=leading.epoch) as tx:
        tx.put(NodeRow("local-0", 5, a_node(), False, False, START))
    assert await asyncio.to_thread(raise_epoch.main, ["57"]) == 0
    assert "58" in capsys.readouterr().out
    await leading.release()
    await restored.lead((await store.lead()).epoch)
    await restored.end(RUN, frozenset(), grace_seconds=0)
    async with store.transaction() as tx:
        (row,) = await tx.select(NodeRow)
        # The scheduler has later versions of this node than the backup.
        assert row.version > 10**12
    await store.close()


@pytest.mark.parametrize("text", ["0", "-1", "x", str(2**62 + 1)])
def test_only_an_epoch_is_accepted(text: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        raise_epoch.main([text])
    assert "epoch" in capsys.readouterr().err
