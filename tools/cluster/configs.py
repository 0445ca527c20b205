"""The configuration files of a node's programs and of DNS. Pure: values in, text out."""

from __future__ import annotations

import json
from typing import Any

from tools.cluster.layout import Layout, NodePlan

PAUSE_IMAGE = "localhost/shiftwork/pause:1"
CONTAINERD_SOCKET = "/run/containerd/containerd.sock"
POD_BRIDGE = "cni0"
KUBELET = "/var/lib/kubelet"


def containerd(node: NodePlan, *, snapshotter: str, runc: str, cni_programs: str) -> str:
    """The configuration of containerd: only what kubelets need."""
    return f"""version = 3
root = "{node.folder}/containerd"
state = "/run/containerd"
disabled_plugins = [
  "io.containerd.nri.v1.nri",
  "io.containerd.internal.v1.opt",
  "io.containerd.tracing.processor.v1.otlp",
]

[grpc]
  address = "{CONTAINERD_SOCKET}"

[plugins."io.containerd.cri.v1.images"]
  snapshotter = "{snapshotter}"
  [plugins."io.containerd.cri.v1.images".pinned_images]
    sandbox = "{PAUSE_IMAGE}"

[plugins."io.containerd.cri.v1.runtime"]
  # Inside a container one may not make one's own score better than it is.
  restrict_oom_score_adj = true
  [plugins."io.containerd.cri.v1.runtime".cni]
    bin_dirs = ["{cni_programs}"]
    conf_dir = "{node.folder}/cni"
  [plugins."io.containerd.cri.v1.runtime".containerd]
    default_runtime_name = "runc"
    [plugins."io.containerd.cri.v1.runtime".containerd.runtimes.runc]
      runtime_type = "io.containerd.runc.v2"
      [plugins."io.containerd.cri.v1.runtime".containerd.runtimes.runc.options]
        SystemdCgroup = false
        BinaryName = "{runc}"

[plugins."io.containerd.grpc.v1.cri"]
  stream_server_address = "127.0.0.1"
  stream_server_port = "0"
"""


def cni(node: NodePlan) -> str:
    """The network of the node's pods: a bridge in the node, addresses of the node's subnet."""
    bridge: dict[str, Any] = {
        "type": "bridge",
        "bridge": POD_BRIDGE,
        "isGateway": True,
        "hairpinMode": True,
        "ipam": {
            "type": "host-local",
            "ranges": [[{"subnet": str(node.pods)}]],
            "routes": [{"dst": "0.0.0.0/0"}],
            "dataDir": "/run/cni",
        },
    }
    ports = {"type": "portmap", "capabilities": {"portMappings": True}}
    plugins = [bridge, ports]
    return json.dumps({"cniVersion": "1.0.0", "name": "pods", "plugins": plugins}, indent=2)


def kubelet(layout: Layout, node: NodePlan, *, cgroup_version: int) -> str:
    """The kubelet's configuration."""
    few = "1%"
    settings = {
        "apiVersion": "kubelet.config.k8s.io/v1beta1",
        "kind": "KubeletConfiguration",
        "address": node.address,
        "port": 10250,
        "healthzBindAddress": node.address,
        "healthzPort": 10248,
        "authentication": {
            "anonymous": {"enabled": False},
            "webhook": {"enabled": True},
            "x509": {"clientCAFile": str(layout.folder / "plane" / "certificates" / "ca.crt")},
        },
        "authorization": {"mode": "Webhook"},
        "containerRuntimeEndpoint": f"unix://{CONTAINERD_SOCKET}",
        "cgroupDriver": "cgroupfs",
        "cgroupRoot": node.cgroup,
        "failCgroupV1": False,
        "failSwapOn": False,
        "clusterDNS": [layout.dns_address],
        "clusterDomain": "cluster.local",
        "resolvConf": str(layout.folder / "resolv.conf"),
        "makeIPTablesUtilChains": False,
        "maxPods": 200,
        # A short time until a node counts as silent, for people and tests that wait for it.
        "nodeLeaseDurationSeconds": 8,
        "nodeStatusUpdateFrequency": "4s",
        # There is no registry to fetch an image again from, and a full disk is not our concern.
        "imageGCHighThresholdPercent": 100,
        "imageGCLowThresholdPercent": 99,
        "evictionHard": {
            "memory.available": "100Mi",
            "nodefs.available": few,
            "nodefs.inodesFree": few,
            "imagefs.available": few,
        },
        "serializeImagePulls": False,
        "registryPullQPS": 0,
        "eventRecordQPS": 0,
        "kubeAPIQPS": 200,
        "kubeAPIBurst": 400,
        # The default size; a short interval, so that a test sees a rotation.
        "containerLogMaxSize": "10Mi",
        "containerLogMonitorInterval": "3s",
    }
    if cgroup_version == 2:  # noqa: PLR2004 - the version's number
        del settings["failCgroupV1"]
    return json.dumps(settings, indent=2)


def kube_proxy(layout: Layout, node: NodePlan, *, kubeconfig: str, masquerade_all: bool) -> str:
    """kube-proxy's configuration: Services by iptables, in the node's own network name space."""
    settings = {
        "apiVersion": "kubeproxy.config.k8s.io/v1alpha1",
        "kind": "KubeProxyConfiguration",
        "mode": "iptables",
        "hostnameOverride": node.name,
        "clientConnection": {"kubeconfig": kubeconfig},
        "clusterCIDR": str(layout.pod_subnet),
        "healthzBindAddress": f"{node.address}:10256",
        "metricsBindAddress": "127.0.0.1:10249",
        # These are the machine's, and read-only in a network name space.
        "conntrack": {
            "maxPerCore": 0,
            "min": 0,
            "tcpEstablishedTimeout": "0s",
            "tcpCloseWaitTimeout": "0s",
        },
        "iptables": {
            "masqueradeAll": masquerade_all,
            "localhostNodePorts": False,
            "minSyncPeriod": "100ms",
            "syncPeriod": "30s",
        },
    }
    return json.dumps(settings, indent=2)
