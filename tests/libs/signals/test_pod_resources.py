"""The kubelet's list of devices, from a real gRPC server on a socket."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import grpc
import pytest

from libs.signals import pod_resources
from libs.signals.pod_resources import PodResources


def text(number: int, value: bytes) -> bytes:
    """A field of a message as protobuf writes it: below 128 bytes."""
    assert len(value) < 128
    return bytes([number << 3 | 2, len(value)]) + value


def pod(name: str, namespace: str, *devices: str) -> bytes:
    held = text(1, b"nvidia.com/gpu") + b"".join(text(2, each.encode()) for each in devices)
    # Fields 3 and 4 are the processors and memory of the container, which are not read.
    container = text(1, b"main") + text(2, held) + b"\x18\x05"
    return text(1, text(1, name.encode()) + text(2, namespace.encode()) + text(3, container))


@contextmanager
def kubelet(socket: Path, answer: bytes | None) -> Iterator[None]:
    """A kubelet that answers this, or refuses."""

    def listed(request: bytes, context: Any) -> bytes:
        assert request == b""
        if answer is None:
            context.abort(grpc.StatusCode.RESOURCE_EXHAUSTED, "too many requests")
        return answer or b""

    handlers = {"List": grpc.unary_unary_rpc_method_handler(listed)}
    server = grpc.server(ThreadPoolExecutor(1))
    server.add_generic_rpc_handlers(
        (grpc.method_handlers_generic_handler("v1.PodResourcesLister", handlers),)
    )
    server.add_insecure_port(f"unix:{socket}")
    server.start()
    try:
        yield
    finally:
        server.stop(0).wait()


def test_the_devices_of_pods_of_one_namespace(tmp_path: Path) -> None:
    socket = tmp_path / "kubelet.sock"
    answer = (
        pod("ta-1-0", "tasks", "GPU-a", "GPU-b")
        + pod("ta-1-1", "tasks", "GPU-c::3")
        + pod("other", "elsewhere", "GPU-d")
        + pod("cpu", "tasks")
    )
    resources = PodResources(socket)
    with kubelet(socket, answer):
        assert resources.devices("tasks") == {
            "ta-1-0": ("GPU-a", "GPU-b"),
            "ta-1-1": ("GPU-c",),
            "cpu": (),
        }
        assert resources.devices("nowhere") == {}


@pytest.mark.parametrize("answer", [None, b"\xff\xff\xff"])
def test_a_kubelet_that_refuses_or_errs_says_nothing(tmp_path: Path, answer: bytes | None) -> None:
    socket = tmp_path / "kubelet.sock"
    with kubelet(socket, answer):
        assert PodResources(socket).devices("tasks") is None


def test_a_kubelet_without_its_socket_says_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert PodResources(tmp_path / "kubelet.sock").devices("tasks") is None
    (tmp_path / "plain").write_text("")
    assert PodResources(tmp_path / "plain").devices("tasks") is None
    monkeypatch.setattr(pod_resources, "SECONDS", 0.2)
    import socket as sockets

    silent = sockets.socket(sockets.AF_UNIX)
    silent.bind(str(tmp_path / "silent"))
    silent.listen()
    try:
        assert PodResources(tmp_path / "silent").devices("tasks") is None
    finally:
        silent.close()
