"""The table of the fields that a pod template may set, with the validator of each.

``template_schema.py`` interprets it. ``Forbidden``: the plan or the platform sets the field.
``NeedsPermission``: only with a permission of the policy. ``SidecarOnly``: only in sidecar
containers. A field that is not in the table is rejected.
"""

from __future__ import annotations

from libs.pods import field_validators as v
from libs.pods.pod_policy import Permission
from libs.pods.template_schema import (
    Forbidden,
    Items,
    Leaf,
    Mapped,
    NeedsPermission,
    Node,
    SidecarOnly,
    Struct,
)

TEXT, NUMBER, FLAG = Leaf("a text"), Leaf("a whole number"), Leaf("true or false")
TEXTS = Leaf("a list of texts")
DOMAINS = Leaf("a list of texts", v.every(v.domain))
EITHER = Leaf("a text or a whole number")
QUANTITY = Leaf("a text or a whole number", v.quantity)

PLANNED = "is planned by the platform"
OURS = "is set by the platform"
LEAVE = "leave it out"


def _one_of(*values: str) -> Leaf:
    return Leaf("a text", v.one_of(*values))


def _forbidden(fix: str = LEAVE, why: str = OURS, harmless: tuple[object, ...] = ()) -> Forbidden:
    return Forbidden(why, fix, harmless)


AS_A_WHOLE = _forbidden("leave it out: a run is tried again as a whole", harmless=("Never",))
PULL_POLICY = _one_of("Always", "IfNotPresent", "Never")

# Environment of a container.
SECRET_NAME = Leaf("a text", v.secret)
CONFIG_MAP_NAME = Leaf("a text", v.config_map)


def _named(leaf: Leaf, **required: Node) -> Struct:
    """A reference to a ConfigMap or Secret, or to a key of it."""
    return Struct({"name": leaf, "optional": FLAG, **required}, ("name", *required))


FIELD_REF = Struct({"fieldPath": TEXT, "apiVersion": TEXT}, ("fieldPath",))
RESOURCE_REF = Struct({"containerName": TEXT, "resource": TEXT, "divisor": QUANTITY}, ("resource",))
ENV_SOURCE = Struct(
    {
        "secretKeyRef": _named(SECRET_NAME, key=TEXT),
        "configMapKeyRef": _named(CONFIG_MAP_NAME, key=TEXT),
        "fieldRef": FIELD_REF,
        "resourceFieldRef": RESOURCE_REF,
    },
    validate=v.one_source(),
)
ENV = Struct(
    {
        "name": Leaf("a text", v.template_variable),
        "value": Leaf("a text", hidden=True),
        "valueFrom": ENV_SOURCE,
    },
    ("name",),
)
ENV_FROM = Struct(
    {
        "prefix": Leaf("a text", v.variable_prefix),
        "configMapRef": _named(CONFIG_MAP_NAME),
        "secretRef": _named(SECRET_NAME),
    }
)

# Probes and hooks. The node would send a probe of another host.
OTHER_HOST = _forbidden("leave it out: the pod itself is asked", "names another host")
HTTP_GET = Struct(
    {
        "path": TEXT,
        "port": EITHER,
        "scheme": _one_of("HTTP", "HTTPS"),
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

# Security.
CONFINEMENT = Struct(
    {"type": Leaf("a text", v.confinement), "localhostProfile": TEXT}, ("type",), v.local_profile
)
SE_LINUX = NeedsPermission(
    Permission.UNCONFINED, Struct({"level": TEXT, "role": TEXT, "type": TEXT, "user": TEXT})
)
USER_ID, GROUP_ID = Leaf("a whole number", v.user_id), Leaf("a whole number", v.group_id)
NON_ROOT = NeedsPermission(Permission.RUN_AS_ROOT, FLAG, (True,))
BOTH_SECURITIES: dict[str, Node] = {
    "runAsUser": USER_ID,
    "runAsGroup": GROUP_ID,
    "runAsNonRoot": NON_ROOT,
    "seLinuxOptions": SE_LINUX,
    "seccompProfile": CONFINEMENT,
    "appArmorProfile": CONFINEMENT,
    "windowsOptions": _forbidden("leave it out: nodes run Linux"),
}
SECURITY = Struct(
    {
        **BOTH_SECURITIES,
        "allowPrivilegeEscalation": NeedsPermission(
            Permission.PRIVILEGE_ESCALATION, FLAG, (False,)
        ),
        "privileged": NeedsPermission(Permission.PRIVILEGED, FLAG, (False,)),
        "capabilities": Struct(
            {"add": Leaf("a list of texts", v.every(v.capability)), "drop": TEXTS}
        ),
        "procMount": NeedsPermission(Permission.PROC_MOUNT, TEXT, ("Default",)),
        "readOnlyRootFilesystem": Leaf("true or false", v.read_only_root),
    }
)
POD_SECURITY = Struct(
    {
        **BOTH_SECURITIES,
        "fsGroup": GROUP_ID,
        "fsGroupChangePolicy": _one_of("OnRootMismatch", "Always"),
        "supplementalGroups": Leaf("a list of whole numbers", v.every(v.group_id)),
        "supplementalGroupsPolicy": _one_of("Merge", "Strict"),
        "sysctls": NeedsPermission(
            Permission.SYSCTLS,
            Items(Struct({"name": TEXT, "value": TEXT}, ("name", "value")), "name"),
        ),
    }
)

# Resources, ports and mounts.
AMOUNTS = Mapped("a text or a whole number", v.container_resource)
RESOURCES = Struct(
    {"limits": AMOUNTS, "requests": AMOUNTS, "claims": _forbidden("ask for resources by name")},
    validate=v.requests_within_limits,
)
PORT = Struct(
    {
        "containerPort": NUMBER,
        "name": TEXT,
        "protocol": _one_of("TCP", "UDP", "SCTP"),
        "hostPort": NeedsPermission(Permission.HOST_PORT, NUMBER, (0,)),
        "hostIP": NeedsPermission(Permission.HOST_PORT, TEXT, ("",)),
    },
    ("containerPort",),
)
MOUNT = Struct(
    {
        "name": Leaf("a text", v.declared_volume),
        "mountPath": Leaf("a text", v.mount_path),
        "readOnly": FLAG,
        "recursiveReadOnly": _one_of("Disabled", "IfPossible", "Enabled"),
        "subPath": TEXT,
        "subPathExpr": TEXT,
        "mountPropagation": NeedsPermission(Permission.PRIVILEGED, TEXT, ("None",)),
    },
    ("name", "mountPath"),
)
_CONTAINER: dict[str, Node] = {
    "name": Leaf("a text", v.container_name),
    "image": SidecarOnly(Leaf("a text", v.image), "pod.image"),
    "imagePullPolicy": SidecarOnly(PULL_POLICY, "pod.image_pull_policy"),
    "command": SidecarOnly(TEXTS, "command"),
    "args": SidecarOnly(TEXTS, "command"),
    "workingDir": SidecarOnly(TEXT, "working_directory"),
    "resources": SidecarOnly(RESOURCES, "cpus, memory_bytes, gpus_per_node or pod.resources"),
    "env": Items(ENV, "name"),
    "envFrom": Items(ENV_FROM),
    "ports": Items(PORT),
    "volumeMounts": Items(MOUNT, "mountPath"),
    "securityContext": SECURITY,
    "livenessProbe": PROBE,
    "readinessProbe": PROBE,
    "startupProbe": PROBE,
    "lifecycle": Struct({"postStart": HOOK, "preStop": HOOK, "stopSignal": _forbidden()}),
    "stdin": FLAG,
    "stdinOnce": FLAG,
    "tty": FLAG,
    "terminationMessagePath": TEXT,
    "terminationMessagePolicy": _one_of("File", "FallbackToLogsOnError"),
    "restartPolicy": AS_A_WHOLE,
    "restartPolicyRules": _forbidden("leave it out: a run is tried again as a whole"),
    "resizePolicy": _forbidden(),
    "volumeDevices": _forbidden("ask an administrator for a storage grant"),
}
CONTAINER = Struct(_CONTAINER, ("name",), v.complete_container)
# An init container that is always restarted runs beside the task and ends with it.
INIT_CONTAINER = Struct(
    {
        **_CONTAINER,
        "name": Leaf("a text", v.init_container_name),
        "restartPolicy": Leaf("a text", v.sidecar_restart),
    },
    ("name", "image"),
    v.init_container,
)

# Metadata of an object.
METADATA = Struct(
    {
        "labels": Mapped("a text", v.label),
        "annotations": Mapped("a text", v.annotation),
        **dict.fromkeys(
            ("name", "generateName", "namespace", "ownerReferences", "finalizers"),
            _forbidden("leave it out: the run gives its objects name, place and owner"),
        ),
    }
)

# Volumes.
KEYS_TO_PATHS = Items(Struct({"key": TEXT, "path": TEXT, "mode": NUMBER}, ("key", "path")))
DOWNWARD = Items(
    Struct(
        {"path": TEXT, "fieldRef": FIELD_REF, "resourceFieldRef": RESOURCE_REF, "mode": NUMBER},
        ("path",),
    )
)


def _keys_of(name: str, leaf: Leaf, **more: Node) -> Struct:
    """The keys of a ConfigMap or Secret as files."""
    return Struct({name: leaf, "items": KEYS_TO_PATHS, "optional": FLAG, **more}, (name,))


PROJECTED = Struct(
    {
        "configMap": _keys_of("name", CONFIG_MAP_NAME),
        "secret": _keys_of("name", SECRET_NAME),
        "downwardAPI": Struct({"items": DOWNWARD}),
        "serviceAccountToken": NeedsPermission(
            Permission.SERVICE_ACCOUNT,
            Struct({"audience": TEXT, "expirationSeconds": NUMBER, "path": TEXT}, ("path",)),
        ),
    }
)
# An ephemeral claim makes a new, empty volume. A source, a selector or a volume name would expose
# what another person stored.
EMPTY = _forbidden(
    "leave it out: an ephemeral volume begins empty", "names another volume's content"
)
CLAIM_AMOUNTS = Mapped("a text or a whole number", v.claim_amount)
EPHEMERAL_CLAIM = Struct(
    {
        "metadata": METADATA,
        "spec": Struct(
            {
                "accessModes": TEXTS,
                "resources": Struct({"requests": CLAIM_AMOUNTS, "limits": CLAIM_AMOUNTS}),
                "storageClassName": TEXT,
                "volumeMode": _one_of("Filesystem"),
                **dict.fromkeys(("dataSource", "dataSourceRef", "selector", "volumeName"), EMPTY),
            },
            ("accessModes", "resources"),
        ),
    },
    ("spec",),
)
VOLUME = Struct(
    {
        "name": Leaf("a text", v.volume_name),
        "emptyDir": Struct({"medium": TEXT, "sizeLimit": QUANTITY}),
        "configMap": _keys_of("name", CONFIG_MAP_NAME, defaultMode=NUMBER),
        "secret": _keys_of("secretName", SECRET_NAME, defaultMode=NUMBER),
        "downwardAPI": Struct({"items": DOWNWARD, "defaultMode": NUMBER}),
        "projected": Struct({"sources": Items(PROJECTED), "defaultMode": NUMBER}),
        "persistentVolumeClaim": Struct(
            {"claimName": Leaf("a text", v.claim), "readOnly": FLAG}, ("claimName",)
        ),
        "hostPath": NeedsPermission(
            Permission.HOST_PATH,
            Struct({"path": Leaf("a text", v.host_path), "type": TEXT}, ("path",)),
        ),
        "nfs": NeedsPermission(
            Permission.OTHER_VOLUMES,
            Struct(
                {"server": TEXT, "path": TEXT, "readOnly": FLAG}, ("server", "path"), v.nfs_export
            ),
        ),
        "csi": NeedsPermission(
            Permission.OTHER_VOLUMES,
            Struct(
                {
                    "driver": Leaf("a text", v.csi_driver),
                    "fsType": TEXT,
                    "readOnly": FLAG,
                    "volumeAttributes": Mapped("a text"),
                    "nodePublishSecretRef": Struct({"name": SECRET_NAME}, ("name",)),
                },
                ("driver",),
            ),
        ),
        "ephemeral": NeedsPermission(
            Permission.OTHER_VOLUMES,
            Struct({"volumeClaimTemplate": EPHEMERAL_CLAIM}, ("volumeClaimTemplate",)),
        ),
        "image": NeedsPermission(
            Permission.OTHER_VOLUMES,
            Struct(
                {"reference": Leaf("a text", v.image), "pullPolicy": PULL_POLICY}, ("reference",)
            ),
        ),
    },
    ("name",),
    v.one_source("name"),
)

POD_SPEC = Struct(
    {
        "containers": Items(CONTAINER, "name", v.into_container),
        "initContainers": Items(INIT_CONTAINER, "name"),
        "volumes": Items(VOLUME, "name"),
        "tolerations": Items(
            Struct(
                {
                    "key": Leaf("a text", v.qualified),
                    "operator": _one_of("Exists", "Equal"),
                    "value": Leaf("a text", v.label_text),
                    "effect": _one_of("NoSchedule", "PreferNoSchedule", "NoExecute"),
                    "tolerationSeconds": NUMBER,
                },
                validate=v.toleration,
            )
        ),
        "hostAliases": Items(
            Struct({"ip": Leaf("a text", v.address), "hostnames": DOMAINS}, ("ip",)), "ip"
        ),
        "dnsConfig": Struct(
            {
                "nameservers": Leaf("a list of texts", v.every(v.address)),
                "searches": DOMAINS,
                "options": Items(Struct({"name": TEXT, "value": TEXT}, ("name",)), "name"),
            }
        ),
        "hostNetwork": NeedsPermission(Permission.HOST_NETWORK, FLAG, (False,)),
        "hostPID": NeedsPermission(Permission.HOST_PID, FLAG, (False,)),
        "hostIPC": NeedsPermission(Permission.HOST_IPC, FLAG, (False,)),
        "hostUsers": FLAG,
        "securityContext": POD_SECURITY,
        "serviceAccountName": NeedsPermission(Permission.SERVICE_ACCOUNT, TEXT),
        "automountServiceAccountToken": NeedsPermission(Permission.SERVICE_ACCOUNT, FLAG, (False,)),
        **dict.fromkeys(
            ("nodeName", "nodeSelector", "affinity", "topologySpreadConstraints"),
            _forbidden("use node_selector of the task", PLANNED),
        ),
        **dict.fromkeys(
            ("schedulerName", "schedulingGates", "schedulingGroup"), _forbidden(why=PLANNED)
        ),
        **dict.fromkeys(
            ("priority", "priorityClassName"), _forbidden("use priority of the task", PLANNED)
        ),
        "preemptionPolicy": _forbidden("use preemption of the task", PLANNED),
        "resourceClaims": _forbidden("use pod.resources of the task", PLANNED),
        "resources": _forbidden("use cpus and memory_bytes of the task", PLANNED),
        "restartPolicy": AS_A_WHOLE,
        **dict.fromkeys(
            (
                *("overhead", "runtimeClassName", "readinessGates"),
                *("hostname", "hostnameOverride", "subdomain", "setHostnameAsFQDN"),
            ),
            _forbidden(),
        ),
        "activeDeadlineSeconds": _forbidden("use max_run_seconds of the task"),
        "terminationGracePeriodSeconds": _forbidden(
            "use preemption.ack_deadline_seconds of the task"
        ),
        "dnsPolicy": _forbidden("use dnsConfig", harmless=("ClusterFirst",)),
        "enableServiceLinks": _forbidden(harmless=(False,)),
        "shareProcessNamespace": _forbidden(
            "leave it out: signals go to process 1", harmless=(False,)
        ),
        "imagePullSecrets": _forbidden("use pod.image_pull_secrets of the task"),
        "ephemeralContainers": _forbidden("write it under containers", "is for running pods"),
        "os": _forbidden("leave it out: nodes run Linux"),
        "serviceAccount": _forbidden("write serviceAccountName"),
    },
    validate=v.names_differ,
)
TEMPLATE = Struct(
    {
        "metadata": METADATA,
        "spec": POD_SPEC,
        **dict.fromkeys(("apiVersion", "kind"), _forbidden("write metadata and spec alone")),
    }
)
