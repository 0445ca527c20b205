"""The fields of a pod template that a task may write, and what is asked about each.

A table read by ``schema.py``. ``Never``: the plan or the platform says it. ``Needs``: only with a
permission of the policy. ``Beside``: for containers beside the task's own. Not here: refused.
"""

from __future__ import annotations

from libs.pods import judges as j
from libs.pods.policy import Permission
from libs.pods.schema import Beside, Items, Leaf, Mapped, Needs, Never, Node, Struct

TEXT, NUMBER, FLAG = Leaf("a text"), Leaf("a whole number"), Leaf("true or false")
TEXTS, NUMBERS = Leaf("a list of texts"), Leaf("a list of whole numbers")
DOMAINS = Leaf("a list of texts", j.domains)
EITHER = Leaf("a text or a whole number")
QUANTITY = Leaf("a text or a whole number", j.quantity)

PLANNED = "is planned by the platform"
OURS = "is said by the platform"
LEAVE = "leave it out"


def _word(*words: str) -> Leaf:
    return Leaf("a text", j.one_of(*words))


def _never(fix: str = LEAVE, why: str = OURS, harmless: tuple[object, ...] = ()) -> Never:
    return Never(why, fix, harmless)


PULL_POLICY = _word("Always", "IfNotPresent", "Never")

# What a container is told.
SECRET_NAME = Leaf("a text", j.secret)
CONFIG_MAP_NAME = Leaf("a text", j.config_map)
KEY_OF_SECRET = Struct({"name": SECRET_NAME, "key": TEXT, "optional": FLAG}, ("name", "key"))
KEY_OF_CONFIG_MAP = Struct(
    {"name": CONFIG_MAP_NAME, "key": TEXT, "optional": FLAG}, ("name", "key")
)
FIELD_REF = Struct({"fieldPath": TEXT, "apiVersion": TEXT}, ("fieldPath",))
RESOURCE_REF = Struct({"containerName": TEXT, "resource": TEXT, "divisor": QUANTITY}, ("resource",))
ENV_SOURCE = Struct(
    {
        "secretKeyRef": KEY_OF_SECRET,
        "configMapKeyRef": KEY_OF_CONFIG_MAP,
        "fieldRef": FIELD_REF,
        "resourceFieldRef": RESOURCE_REF,
    },
    judge=j.one_source,
)
ENV = Struct(
    {
        "name": Leaf("a text", j.variable),
        "value": Leaf("a text", hidden=True),
        "valueFrom": ENV_SOURCE,
    },
    ("name",),
)
ENV_FROM = Struct(
    {
        "prefix": Leaf("a text", j.variable_prefix),
        "configMapRef": Struct({"name": CONFIG_MAP_NAME, "optional": FLAG}, ("name",)),
        "secretRef": Struct({"name": SECRET_NAME, "optional": FLAG}, ("name",)),
    }
)

# How it is asked and ended. A probe of another host would be made by the node.
OTHER_HOST = _never("leave it out: the pod itself is asked", "names another host")
HTTP_GET = Struct(
    {
        "path": TEXT,
        "port": EITHER,
        "scheme": _word("HTTP", "HTTPS"),
        "host": OTHER_HOST,
        "httpHeaders": Items(Struct({"name": TEXT, "value": TEXT}, ("name", "value"))),
    },
    ("port",),
)
WAYS: dict[str, Node] = {
    "exec": Struct({"command": TEXTS}),
    "httpGet": HTTP_GET,
    "tcpSocket": Struct({"port": EITHER, "host": OTHER_HOST}, ("port",)),
}
PROBE = Struct(
    {
        **WAYS,
        "grpc": Struct({"port": NUMBER, "service": TEXT}, ("port",)),
        **dict.fromkeys(
            (
                "failureThreshold",
                "initialDelaySeconds",
                "periodSeconds",
                "successThreshold",
                "terminationGracePeriodSeconds",
                "timeoutSeconds",
            ),
            NUMBER,
        ),
    }
)
HOOK = Struct({**WAYS, "sleep": Struct({"seconds": NUMBER}, ("seconds",))})

# What it may do.
CONFINEMENT = Struct(
    {"type": Leaf("a text", j.confinement), "localhostProfile": TEXT}, ("type",), j.local_profile
)
SE_LINUX = Needs(
    Permission.UNCONFINED, Struct({"level": TEXT, "role": TEXT, "type": TEXT, "user": TEXT})
)
USER_ID, GROUP_ID = Leaf("a whole number", j.user_id), Leaf("a whole number", j.group_id)
NON_ROOT = Needs(Permission.RUN_AS_ROOT, FLAG, (True,))
BOTH_SECURITIES: dict[str, Node] = {
    "runAsUser": USER_ID,
    "runAsGroup": GROUP_ID,
    "runAsNonRoot": NON_ROOT,
    "seLinuxOptions": SE_LINUX,
    "seccompProfile": CONFINEMENT,
    "appArmorProfile": CONFINEMENT,
    "windowsOptions": _never("leave it out: nodes run Linux"),
}
SECURITY = Struct(
    {
        **BOTH_SECURITIES,
        "allowPrivilegeEscalation": Needs(Permission.PRIVILEGE_ESCALATION, FLAG, (False,)),
        "privileged": Needs(Permission.PRIVILEGED, FLAG, (False,)),
        "capabilities": Struct({"add": Leaf("a list of texts", j.capabilities), "drop": TEXTS}),
        "procMount": Needs(Permission.PROC_MOUNT, TEXT, ("Default",)),
        "readOnlyRootFilesystem": Leaf("true or false", j.read_only_root),
    }
)
POD_SECURITY = Struct(
    {
        **BOTH_SECURITIES,
        "fsGroup": GROUP_ID,
        "fsGroupChangePolicy": _word("OnRootMismatch", "Always"),
        "supplementalGroups": Leaf("a list of whole numbers", j.group_ids),
        "supplementalGroupsPolicy": _word("Merge", "Strict"),
        "sysctls": Needs(
            Permission.SYSCTLS,
            Items(Struct({"name": TEXT, "value": TEXT}, ("name", "value")), "name"),
        ),
    }
)

# What it is given.
AMOUNTS = Mapped("a text or a whole number", j.container_resource)
RESOURCES = Struct(
    {"limits": AMOUNTS, "requests": AMOUNTS, "claims": _never("ask for resources by name")},
    judge=j.requests_within_limits,
)
PORT = Struct(
    {
        "containerPort": NUMBER,
        "name": TEXT,
        "protocol": _word("TCP", "UDP", "SCTP"),
        "hostPort": Needs(Permission.HOST_PORT, NUMBER, (0,)),
        "hostIP": Needs(Permission.HOST_PORT, TEXT, ("",)),
    },
    ("containerPort",),
)
MOUNT = Struct(
    {
        "name": Leaf("a text", j.declared_volume),
        "mountPath": Leaf("a text", j.mount_path),
        "readOnly": FLAG,
        "recursiveReadOnly": _word("Disabled", "IfPossible", "Enabled"),
        "subPath": TEXT,
        "subPathExpr": TEXT,
        "mountPropagation": Needs(Permission.PRIVILEGED, TEXT, ("None",)),
    },
    ("name", "mountPath"),
)
_CONTAINER: dict[str, Node] = {
    "name": Leaf("a text", j.container_name),
    "image": Beside(Leaf("a text", j.image), "pod.image"),
    "imagePullPolicy": Beside(PULL_POLICY, "pod.image_pull_policy"),
    "command": Beside(TEXTS, "command"),
    "args": Beside(TEXTS, "command"),
    "workingDir": Beside(TEXT, "working_directory"),
    "resources": Beside(RESOURCES, "cpus, memory_bytes, gpus_per_node or pod.resources"),
    "env": Items(ENV, "name"),
    "envFrom": Items(ENV_FROM),
    "ports": Items(PORT),
    "volumeMounts": Items(MOUNT, "mountPath"),
    "securityContext": SECURITY,
    "livenessProbe": PROBE,
    "readinessProbe": PROBE,
    "startupProbe": PROBE,
    "lifecycle": Struct({"postStart": HOOK, "preStop": HOOK, "stopSignal": _never()}),
    "stdin": FLAG,
    "stdinOnce": FLAG,
    "tty": FLAG,
    "terminationMessagePath": TEXT,
    "terminationMessagePolicy": _word("File", "FallbackToLogsOnError"),
    "restartPolicy": _never("leave it out: a run is tried again as a whole", harmless=("Never",)),
    "restartPolicyRules": _never("leave it out: a run is tried again as a whole"),
    "resizePolicy": _never(),
    "volumeDevices": _never("ask an administrator for a storage grant"),
}
CONTAINER = Struct(_CONTAINER, ("name",), j.complete_container)
# One that is always restarted runs beside the task and ends with it.
INIT_CONTAINER = Struct(
    {
        **_CONTAINER,
        "name": Leaf("a text", j.init_container_name),
        "restartPolicy": Leaf("a text", j.sidecar_restart),
    },
    ("name", "image"),
    j.init_container,
)

# What is said about an object itself.
METADATA = Struct(
    {
        "labels": Mapped("a text", j.label),
        "annotations": Mapped("a text", j.annotation),
        **dict.fromkeys(
            ("name", "generateName", "namespace", "ownerReferences", "finalizers"),
            _never("leave it out: the run gives its objects name, place and owner"),
        ),
    }
)

# What it mounts.
KEYS_TO_PATHS = Items(Struct({"key": TEXT, "path": TEXT, "mode": NUMBER}, ("key", "path")))
DOWNWARD = Items(
    Struct(
        {
            "path": TEXT,
            "fieldRef": FIELD_REF,
            "resourceFieldRef": RESOURCE_REF,
            "mode": NUMBER,
        },
        ("path",),
    )
)
PROJECTED = Struct(
    {
        "configMap": Struct(
            {"name": CONFIG_MAP_NAME, "items": KEYS_TO_PATHS, "optional": FLAG}, ("name",)
        ),
        "secret": Struct(
            {"name": SECRET_NAME, "items": KEYS_TO_PATHS, "optional": FLAG}, ("name",)
        ),
        "downwardAPI": Struct({"items": DOWNWARD}),
        "serviceAccountToken": Needs(
            Permission.SERVICE_ACCOUNT,
            Struct({"audience": TEXT, "expirationSeconds": NUMBER, "path": TEXT}, ("path",)),
        ),
    }
)
# An ephemeral claim is a new and empty volume. A source, a selector or a volume's name would give
# the pod what another person stored.
EMPTY = _never("leave it out: an ephemeral volume begins empty", "names another volume's content")
CLAIM_AMOUNTS = Mapped("a text or a whole number", j.claim_amount)
EPHEMERAL_CLAIM = Struct(
    {
        "metadata": METADATA,
        "spec": Struct(
            {
                "accessModes": TEXTS,
                "resources": Struct({"requests": CLAIM_AMOUNTS, "limits": CLAIM_AMOUNTS}),
                "storageClassName": TEXT,
                "volumeMode": _word("Filesystem"),
                **dict.fromkeys(("dataSource", "dataSourceRef", "selector", "volumeName"), EMPTY),
            },
            ("accessModes", "resources"),
        ),
    },
    ("spec",),
)
VOLUME = Struct(
    {
        "name": Leaf("a text", j.volume_name),
        "emptyDir": Struct({"medium": TEXT, "sizeLimit": QUANTITY}),
        "configMap": Struct(
            {
                "name": CONFIG_MAP_NAME,
                "items": KEYS_TO_PATHS,
                "defaultMode": NUMBER,
                "optional": FLAG,
            },
            ("name",),
        ),
        "secret": Struct(
            {
                "secretName": SECRET_NAME,
                "items": KEYS_TO_PATHS,
                "defaultMode": NUMBER,
                "optional": FLAG,
            },
            ("secretName",),
        ),
        "downwardAPI": Struct({"items": DOWNWARD, "defaultMode": NUMBER}),
        "projected": Struct({"sources": Items(PROJECTED), "defaultMode": NUMBER}),
        "persistentVolumeClaim": Struct(
            {"claimName": Leaf("a text", j.claim), "readOnly": FLAG}, ("claimName",)
        ),
        "hostPath": Needs(
            Permission.HOST_PATH,
            Struct({"path": Leaf("a text", j.host_path), "type": TEXT}, ("path",)),
        ),
        "nfs": Needs(
            Permission.OTHER_VOLUMES,
            Struct(
                {"server": TEXT, "path": TEXT, "readOnly": FLAG}, ("server", "path"), j.nfs_export
            ),
        ),
        "csi": Needs(
            Permission.OTHER_VOLUMES,
            Struct(
                {
                    "driver": Leaf("a text", j.csi_driver),
                    "fsType": TEXT,
                    "readOnly": FLAG,
                    "volumeAttributes": Mapped("a text"),
                    "nodePublishSecretRef": Struct({"name": SECRET_NAME}, ("name",)),
                },
                ("driver",),
            ),
        ),
        "ephemeral": Needs(
            Permission.OTHER_VOLUMES,
            Struct({"volumeClaimTemplate": EPHEMERAL_CLAIM}, ("volumeClaimTemplate",)),
        ),
        "image": Needs(
            Permission.OTHER_VOLUMES,
            Struct(
                {"reference": Leaf("a text", j.image), "pullPolicy": PULL_POLICY}, ("reference",)
            ),
        ),
    },
    ("name",),
    j.one_volume_source,
)

NODES = _never("use node_selector of the task", PLANNED)
POD_SPEC = Struct(
    {
        "containers": Items(CONTAINER, "name", j.into_container),
        "initContainers": Items(INIT_CONTAINER, "name"),
        "volumes": Items(VOLUME, "name"),
        "tolerations": Items(
            Struct(
                {
                    "key": Leaf("a text", j.qualified),
                    "operator": _word("Exists", "Equal"),
                    "value": Leaf("a text", j.label_text),
                    "effect": _word("NoSchedule", "PreferNoSchedule", "NoExecute"),
                    "tolerationSeconds": NUMBER,
                },
                judge=j.toleration,
            )
        ),
        "hostAliases": Items(
            Struct({"ip": Leaf("a text", j.address), "hostnames": DOMAINS}, ("ip",)), "ip"
        ),
        "dnsConfig": Struct(
            {
                "nameservers": Leaf("a list of texts", j.addresses),
                "searches": DOMAINS,
                "options": Items(Struct({"name": TEXT, "value": TEXT}, ("name",)), "name"),
            }
        ),
        "hostNetwork": Needs(Permission.HOST_NETWORK, FLAG, (False,)),
        "hostPID": Needs(Permission.HOST_PID, FLAG, (False,)),
        "hostIPC": Needs(Permission.HOST_IPC, FLAG, (False,)),
        "hostUsers": FLAG,
        "securityContext": POD_SECURITY,
        "serviceAccountName": Needs(Permission.SERVICE_ACCOUNT, TEXT),
        "automountServiceAccountToken": Needs(Permission.SERVICE_ACCOUNT, FLAG, (False,)),
        "nodeName": NODES,
        "nodeSelector": NODES,
        "affinity": NODES,
        "topologySpreadConstraints": NODES,
        "schedulerName": _never(why=PLANNED),
        "schedulingGates": _never(why=PLANNED),
        "schedulingGroup": _never(why=PLANNED),
        "priority": _never("use priority of the task", PLANNED),
        "priorityClassName": _never("use priority of the task", PLANNED),
        "preemptionPolicy": _never("use preemption of the task", PLANNED),
        "resourceClaims": _never("use pod.resources of the task", PLANNED),
        "resources": _never("use cpus and memory_bytes of the task", PLANNED),
        "overhead": _never(),
        "runtimeClassName": _never(),
        "restartPolicy": _never(
            "leave it out: a run is tried again as a whole", harmless=("Never",)
        ),
        "activeDeadlineSeconds": _never("use max_run_seconds of the task"),
        "terminationGracePeriodSeconds": _never("use preemption.ack_deadline_seconds of the task"),
        "hostname": _never(),
        "hostnameOverride": _never(),
        "subdomain": _never(),
        "setHostnameAsFQDN": _never(),
        "dnsPolicy": _never("use dnsConfig", harmless=("ClusterFirst",)),
        "enableServiceLinks": _never(harmless=(False,)),
        "shareProcessNamespace": _never("leave it out: signals go to process 1", harmless=(False,)),
        "imagePullSecrets": _never("use pod.image_pull_secrets of the task"),
        "readinessGates": _never(),
        "ephemeralContainers": _never("write it under containers", "is for running pods"),
        "os": _never("leave it out: nodes run Linux"),
        "serviceAccount": _never("write serviceAccountName"),
    },
    judge=j.names_differ,
)
TEMPLATE = Struct(
    {
        "metadata": METADATA,
        "spec": POD_SPEC,
        **dict.fromkeys(("apiVersion", "kind"), _never("write metadata and spec alone")),
    }
)
