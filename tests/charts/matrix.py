"""The installations that every check of rendered charts goes through."""

from __future__ import annotations

from typing import Any

from tests.charts.charts import merged

# A cluster without storage classes: nothing survives its pod.
TRIAL: dict[str, Any] = {
    "nats": {"persistence": {"enabled": False}},
    "postgres": {"persistence": {"enabled": False}},
    "log-collector": {"archive": {"enabled": False}},
}
SECRETS = {"secrets": {"nats": "our-nats", "postgres": "our-postgres", "keys": "our-keys"}}
EXTERNAL: dict[str, Any] = {
    "global": {
        "database": {
            "host": "db.example.org",
            "port": 6432,
            "name": "training",
            "sslmode": "verify-full",
            "caConfigMap": "db-ca",
        },
        "nats": {
            "url": "tls://a.example.org:4222,tls://b.example.org",
            "caConfigMap": "nats-ca",
        },
        **SECRETS,
    },
    "nats": {"enabled": False},
    "postgres": {"enabled": False},
    "provision": {"adminUser": "dba", "adminDatabase": "defaultdb", "streamReplicas": 3},
}
MONITORED = {
    "global": {
        "monitoring": {"enabled": True, "labels": {"release": "prometheus"}},
        "traces": {
            "endpoint": "http://collector.monitoring:4318",
            "ratio": 0.1,
            "headersSecret": "our-collector",
        },
    },
    "dashboards": {"enabled": True},
}

MATRIX: dict[str, dict[str, Any]] = {
    "default": {},
    "trial": TRIAL,
    "external": EXTERNAL,
    "minimal": merged(
        TRIAL,
        {
            **{
                name: {"replicas": 1}
                for name in ("submit", "scheduler", "launcher", "quota", "monitor", "gateway")
            },
            "log-collector": {"agent": {"enabled": False}},
            "launcher": {"replicas": 1, "nodeAgents": False},
            "tasks": {"createNamespace": False},
            "sweep": {"enabled": False},
        },
    ),
    "high-availability": {
        "nats": {"replicas": 3},
        "gateway": {
            "replicas": 3,
            "ingress": {
                "enabled": True,
                "className": "nginx",
                "host": "training.example.org",
                "tlsSecret": "tls",
                "annotations": {"nginx.ingress.kubernetes.io/proxy-buffering": "off"},
            },
            "reachableFrom": [{"ipBlock": {"cidr": "10.0.0.0/8"}}],
        },
        "log-collector": {
            "replicas": 2,
            "archive": {"accessMode": "ReadWriteMany", "storageClass": "nfs", "size": "1Ti"},
        },
    },
    "monitored": MONITORED,
    "events-for-others": {
        "nats": {
            "monitoringUsers": ["grafana", "audit_2"],
            "monitoringFrom": [{"namespaceSelector": {"matchLabels": {"name": "grafana"}}}],
        },
    },
    "open-networks": {
        "global": {"networkPolicies": {"enabled": False}},
        "tasks": {"networkPolicy": {"enabled": False}},
    },
    "own-secrets": {"global": SECRETS},
    "own-registry": {
        "global": {
            "name": "gpus",
            "image": {
                "registry": "registry.example.org/team",
                "tag": "1.2.3",
                "pullPolicy": "Always",
                "pullSecrets": ["registry"],
            },
        },
        "gateway": {"image": {"digest": "sha256:" + "0" * 64}},
        "nats": {"image": {"registry": "docker.io", "repository": "library/nats", "tag": "2.12"}},
    },
    "every-setting": {
        "global": {
            "tasks": {"namespace": "training"},
            "gateway": {"url": "https://training.example.org"},
            "networkPolicies": {
                "dns": {"namespace": "", "ports": [53, 5353]},
                "apiServerPorts": [443],
            },
            "podPolicy": {
                "gpu_resource": "example.org/gpu",
                "host_path_roots": ["/data"],
                "images": [{"names": ["registry.example.org/*"]}],
                "env": {"LANG": "C.UTF-8"},
            },
        },
        "tasks": {
            "keepOnUninstall": False,
            "podSecurity": "baseline",
            "labels": {"team": "ml"},
            "annotations": {"example.org/contact": "ml"},
            "networkPolicy": {"betweenTasks": False, "egress": [{}], "ingress": [{}]},
            "resourceQuota": {"requests.nvidia.com/gpu": "64"},
            "limitRange": [{"type": "Container", "default": {"memory": "8Gi"}}],
        },
        "scheduler": {
            "settings": {"protected_seconds": 60.5, "dumps_max": 3},
            "policies": "groups:\n  default: {policy: fifo}\n",
            "pod": {
                "priorityClassName": "system-cluster-critical",
                "nodeSelector": {"role": "infra"},
                "tolerations": [{"key": "infra", "operator": "Exists"}],
                "annotations": {"example.org/a": "b"},
                "labels": {"example.org/c": "d"},
            },
        },
        "gateway": {"settings": {"events_kept_max": 20_000_000}},
        "log-collector": {"errorPatterns": "data-loader: 'shard .* is missing'\nfatal: ''\n"},
        "launcher": {"settings": {"actions_parallel_max": 32}},
        "monitor": {
            "rules": {
                "idle_gpus": {"threshold": 7200, "actions": ["notify", "tag", "stop"]},
                "teams": {"vision": {"long_run": {"enabled": False}}},
            }
        },
    },
}
