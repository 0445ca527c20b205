"""Asks the kubelet which devices each pod has: its pod-resources API, version 1.

It is a gRPC service on a socket of the node, /var/lib/kubelet/pod-resources/kubelet.sock, that only
reads: https://kubernetes.io/docs/concepts/extend-kubernetes/compute-storage-net/device-plugins.
The node agent uses it. The few fields that are read are declared here.
"""

from __future__ import annotations

import importlib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from google.protobuf import descriptor_pb2, descriptor_pool, message_factory

METHOD = "/v1.PodResourcesLister/List"
ANSWER_BYTES_MAX = 4 << 20
SECONDS = 2.0
PACKAGE = "shiftwork.kubelet.v1"

_Field = descriptor_pb2.FieldDescriptorProto
_ONE, _MANY = _Field.LABEL_OPTIONAL, _Field.LABEL_REPEATED
# message: field, number, label, type ("" is a string).
_FIELDS = {
    "ContainerDevices": (("resource_name", 1, _ONE, ""), ("device_ids", 2, _MANY, "")),
    "ContainerResources": (("name", 1, _ONE, ""), ("devices", 2, _MANY, "ContainerDevices")),
    "PodResources": (
        ("name", 1, _ONE, ""),
        ("namespace", 2, _ONE, ""),
        ("containers", 3, _MANY, "ContainerResources"),
    ),
    "ListPodResourcesResponse": (("pod_resources", 1, _MANY, "PodResources"),),
}


class PodResources:
    """The kubelet's answers. ``socket``: its path in this container."""

    def __init__(self, socket: Path) -> None:
        self._socket = socket
        self._answer = _answer_class()

    def devices(self, namespace: str) -> Mapping[str, tuple[str, ...]] | None:
        """The ids of each pod's devices, of whatever resource, by the pod's name. A device that
        several pods share has its own id before ``::``. None if the kubelet does not answer."""
        if not self._socket.is_socket():
            return None
        try:
            grpc: Any = importlib.import_module("grpc")
        except ImportError:
            return None
        try:
            # A new connection each time: a restarted kubelet has a new socket.
            limits = [("grpc.max_receive_message_length", ANSWER_BYTES_MAX)]
            with grpc.insecure_channel(f"unix:{self._socket}", options=limits) as channel:
                ask = channel.unary_unary(METHOD, response_deserializer=self._answer.FromString)
                answer: Any = ask(b"", timeout=SECONDS)
        except grpc.RpcError:
            return None
        return {
            pod.name: tuple(
                device.partition("::")[0]
                for container in pod.containers
                for devices in container.devices
                for device in devices.device_ids
            )
            for pod in answer.pod_resources
            if pod.namespace == namespace
        }


def _answer_class() -> Any:  # noqa: ANN401 - a class that protobuf makes
    file = descriptor_pb2.FileDescriptorProto(
        name="shiftwork/kubelet/podresources.proto", package=PACKAGE, syntax="proto3"
    )
    for message, fields in _FIELDS.items():
        made = file.message_type.add(name=message)
        for name, number, label, kind in fields:
            declared = made.field.add(name=name, number=number, label=label)
            declared.type = _Field.TYPE_MESSAGE if kind else _Field.TYPE_STRING
            if kind:
                declared.type_name = f".{PACKAGE}.{kind}"
    pool = descriptor_pool.DescriptorPool()
    pool.Add(file)
    return message_factory.GetMessageClass(
        pool.FindMessageTypeByName(f"{PACKAGE}.ListPodResourcesResponse")
    )
