"""The Pod Security Standards as a function, written from their text and not from our table:
https://kubernetes.io/docs/concepts/security/pod-security-standards/
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

Json = dict[str, Any]

VOLUMES = {
    "configMap",
    "csi",
    "downwardAPI",
    "emptyDir",
    "ephemeral",
    "persistentVolumeClaim",
    "projected",
    "secret",
    # Not in the text, but the admission takes it: an image, read-only.
    "image",
}
SYSCTLS = {
    "kernel.shm_rmid_forced",
    "net.ipv4.ip_local_port_range",
    "net.ipv4.ip_unprivileged_port_start",
    "net.ipv4.tcp_syncookies",
    "net.ipv4.ping_group_range",
}
SELINUX_TYPES = {"", "container_t", "container_init_t", "container_kvm_t", "container_engine_t"}
APPARMOR = "container.apparmor.security.beta.kubernetes.io/"


def violations(pod: Json) -> list[str]:
    """What of the profile "restricted" (which has "baseline" in it) the pod breaks."""
    return [*_pod(pod), *(found for each in containers(pod) for found in _container(each, pod))]


def containers(pod: Json) -> list[Json]:
    spec = pod["spec"]
    lists = ("containers", "initContainers", "ephemeralContainers")
    return [container for name in lists for container in spec.get(name, [])]


def _pod(pod: Json) -> Iterator[str]:
    spec = pod["spec"]
    security = spec.get("securityContext", {})
    for name in ("hostNetwork", "hostPID", "hostIPC"):
        if spec.get(name):
            yield name
    for volume in spec.get("volumes", []):
        if not set(volume) - {"name"} <= VOLUMES:
            yield f"volume {volume}"
    for sysctl in security.get("sysctls", []):
        if sysctl["name"] not in SYSCTLS:
            yield f"sysctl {sysctl['name']}"
    for key, value in pod["metadata"].get("annotations", {}).items():
        if key.startswith(APPARMOR) and value == "unconfined":
            yield key
    if security.get("runAsUser") == 0:
        yield "pod runAsUser 0"
    yield from _both(security, "pod")


def _both(security: Json, where: str) -> Iterator[str]:
    """What may stand in the pod and in a container."""
    selinux = security.get("seLinuxOptions", {})
    if selinux.get("type", "") not in SELINUX_TYPES or selinux.get("user") or selinux.get("role"):
        yield f"{where} seLinuxOptions"
    if security.get("windowsOptions", {}).get("hostProcess"):
        yield f"{where} hostProcess"
    for name in ("appArmorProfile", "seccompProfile"):
        if security.get(name, {}).get("type", "RuntimeDefault") not in {
            "RuntimeDefault",
            "Localhost",
        }:
            yield f"{where} {name}"


def _container(container: Json, pod: Json) -> Iterator[str]:
    name = container["name"]
    security = container.get("securityContext", {})
    pods = pod["spec"].get("securityContext", {})
    yield from _both(security, name)
    if security.get("privileged"):
        yield f"{name} privileged"
    if security.get("allowPrivilegeEscalation") is not False:
        yield f"{name} allowPrivilegeEscalation"
    if security.get("procMount", "Default") != "Default":
        yield f"{name} procMount"
    if not security.get("runAsNonRoot", pods.get("runAsNonRoot", False)):
        yield f"{name} runAsNonRoot"
    if security.get("runAsUser") == 0:
        yield f"{name} runs as root"
    if "seccompProfile" not in security and "seccompProfile" not in pods:
        yield f"{name} seccompProfile"
    yield from _capabilities(security.get("capabilities", {}), name)
    if any(port.get("hostPort") for port in container.get("ports", [])):
        yield f"{name} hostPort"
    if any(_contacts_other_hosts(container.get(probe, {})) for probe in PROBES):
        yield f"{name} probes another host"
    if any(_contacts_other_hosts(hook) for hook in _hooks(container)):
        yield f"{name} hook contacts another host"


def _capabilities(capabilities: Json, where: str) -> Iterator[str]:
    if "ALL" not in capabilities.get("drop", []):
        yield f"{where} drops not ALL"
    if not set(capabilities.get("add", [])) <= {"NET_BIND_SERVICE"}:
        yield f"{where} adds {capabilities['add']}"


PROBES = ("livenessProbe", "readinessProbe", "startupProbe")


def _hooks(container: Json) -> Iterator[Json]:
    lifecycle = container.get("lifecycle", {})
    for name in ("preStop", "postStart"):
        yield lifecycle.get(name, {})


def _contacts_other_hosts(probe: Json) -> bool:
    return any(probe.get(way, {}).get("host") for way in ("httpGet", "tcpSocket"))
