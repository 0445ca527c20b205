from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import httpx
import pytest
import pytest_asyncio

from services.log_collector.agent import protocol
from services.log_collector.agent.http_app import Token
from services.log_collector.agent.protocol import PodAnswer, PodRead, PodStored
from tests.services.log_collector.fake_agents import TOKEN, Agent
from tests.services.log_collector.fake_kubelet import Kubelet

SHOWN = {"authorization": f"Bearer {TOKEN}"}


@pytest.fixture
def kubelet(tmp_path: Path) -> Kubelet:
    return Kubelet(tmp_path / "log")


@pytest_asyncio.fixture
async def http(kubelet: Kubelet) -> AsyncIterator[httpx.AsyncClient]:
    agent = Agent(kubelet)
    await agent.start()
    async with httpx.AsyncClient(base_url=f"http://127.0.0.1:{agent.port}") as client:
        yield client
    await agent.stop()


async def test_output_is_answered_and_dropped_when_done(
    http: httpx.AsyncClient, kubelet: Kubelet
) -> None:
    kubelet.create("t-1-0").write(b"hello\n")
    reads = [PodRead("t-1-0", 1, 100, ended=True), PodRead("t-1-1", 0, 100, ended=True)]
    got = await http.post("/read", content=protocol.encode_reads(reads, 1000), headers=SHOWN)
    assert got.status_code == 200
    agent, answers = protocol.decode_answers(got.content)
    assert agent
    assert answers == [PodAnswer(b"ello\n"), PodAnswer(absent=True)]
    cut = await http.post("/read", content=protocol.encode_reads(reads, 2), headers=SHOWN)
    assert protocol.decode_answers(cut.content)[1] == [PodAnswer(b"el"), None]
    body = protocol.encode_stored([PodStored("t-1-0", 6, done=True)])
    assert (await http.post("/done", content=body, headers=SHOWN)).status_code == 200
    again = await http.post("/read", content=protocol.encode_reads(reads[:1], 1000), headers=SHOWN)
    assert protocol.decode_answers(again.content)[1] == [PodAnswer(absent=True, complete=True)]


@pytest.mark.parametrize(
    "headers",
    [
        {},
        {"authorization": "Bearer wrong"},
        {"authorization": f"Basic {TOKEN}"},
        {"authorization": "Bearer"},
        {"authorization": f"Bearer {TOKEN}x"},
    ],
)
async def test_without_the_token_nothing_is_answered(
    http: httpx.AsyncClient, headers: dict[str, str]
) -> None:
    for path in ("/read", "/done"):
        got = await http.post(path, content=protocol.encode_reads([], 1), headers=headers)
        assert got.status_code == 401
        assert TOKEN not in got.text
    twice = [("authorization", f"Bearer {TOKEN}"), ("authorization", "Bearer x")]
    assert (await http.post("/read", headers=twice)).status_code == 401


async def test_a_bad_request_gets_the_reason(http: httpx.AsyncClient) -> None:
    got = await http.post("/read", content=b'{"asks": 3}', headers=SHOWN)
    assert (got.status_code, got.json()["detail"]) == (400, "asks 3: write a list of objects")
    assert (await http.get("/read", headers=SHOWN)).status_code == 405
    assert (await http.post("/elsewhere", headers=SHOWN)).status_code == 404
    long = b" " * (protocol.BODY_BYTES_MAX + 1)
    assert (await http.post("/read", content=long, headers=SHOWN)).status_code == 413


async def test_probes_and_metrics_need_no_token(http: httpx.AsyncClient, kubelet: Kubelet) -> None:
    assert (await http.get("/healthz")).text == "ok\n"
    assert (await http.get("/readyz")).status_code == 200
    metrics = (await http.get("/metrics")).text
    for name in ("read_bytes_total", "lost_bytes_total", "gaps_total", "spool_bytes", "outputs"):
        assert f"\nshiftwork_log_agent_{name} " in metrics
    kubelet.pods_dir.rename(kubelet.log_dir / "away")
    await http.post("/read", content=protocol.encode_reads([PodRead("t", 0, 1)], 1), headers=SHOWN)
    for _ in range(100):
        unready = await http.get("/readyz")
        if unready.status_code == 503:
            break
    assert "cannot be listed" in unready.text


def test_the_token_may_be_replaced_and_must_be_there(tmp_path: Path) -> None:
    path = tmp_path / "token"
    with pytest.raises(FileNotFoundError):
        Token(path)
    path.write_text("\n")
    with pytest.raises(ValueError, match="is empty"):
        Token(path)
    path.write_text("first\n")
    token = Token(path)
    assert token.is_shown(b"Bearer first")
    other = tmp_path / "other"
    other.write_text("second\n")
    other.rename(path)
    assert token.is_shown(b"Bearer second")
    assert not token.is_shown(b"Bearer first")
    path.unlink()
    assert token.is_shown(b"Bearer second")
