"""Pod templates: what is refused, with its path; what is let through; and what comes of it."""

from __future__ import annotations

import copy
from typing import Any

import pytest

from libs.pods.pod_policy import Permission, PodPolicy
from libs.pods.pod_template import merged, read_template
from libs.pods.request_validation import check_pod
from tests.kit.comparisons import counted_comparisons
from tests.libs.pods.makers import ADA, OPEN, a_request, a_task, errors_of
from tests.libs.pods.oracle import violations

Json = dict[str, Any]
AT = "pod.template"


def spec(**fields: Any) -> Json:
    return {"spec": fields}


def main(**fields: Any) -> Json:
    return spec(containers=[{"name": "main", **fields}])


def beside(**fields: Any) -> Json:
    return spec(containers=[{"name": "tb", "image": "tb:1", **fields}])


def volume(**fields: Any) -> Json:
    return spec(volumes=[{"name": "v", **fields}])


CLAIM = {"spec": {"accessModes": ["ReadWriteOnce"], "resources": {"requests": {"storage": "1Gi"}}}}
MAIN_AT = f"{AT}.spec.containers[0]"
SECURITY_AT = f"{MAIN_AT}.securityContext"
VOLUME_AT = f"{AT}.spec.volumes[0]"
# Not without a permission: the template, the path, and the permission with which it is let through.
GRANTABLE: list[tuple[Json, str, Permission]] = [
    (
        main(securityContext={"privileged": True}),
        f"{SECURITY_AT}.privileged",
        Permission.PRIVILEGED,
    ),
    (
        main(securityContext={"allowPrivilegeEscalation": True}),
        f"{SECURITY_AT}.allowPrivilegeEscalation",
        Permission.PRIVILEGE_ESCALATION,
    ),
    (main(securityContext={"runAsUser": 0}), f"{SECURITY_AT}.runAsUser", Permission.RUN_AS_ROOT),
    (
        main(securityContext={"runAsNonRoot": False}),
        f"{SECURITY_AT}.runAsNonRoot",
        Permission.RUN_AS_ROOT,
    ),
    (
        spec(securityContext={"runAsUser": 5}),
        f"{AT}.spec.securityContext.runAsUser",
        Permission.RUN_AS_OTHERS,
    ),
    (
        spec(securityContext={"fsGroup": 5}),
        f"{AT}.spec.securityContext.fsGroup",
        Permission.RUN_AS_OTHERS,
    ),
    (
        spec(securityContext={"supplementalGroups": [10_001, 7]}),
        f"{AT}.spec.securityContext.supplementalGroups[1]",
        Permission.RUN_AS_OTHERS,
    ),
    (spec(hostNetwork=True), f"{AT}.spec.hostNetwork", Permission.HOST_NETWORK),
    (spec(hostPID=True), f"{AT}.spec.hostPID", Permission.HOST_PID),
    (spec(hostIPC=True), f"{AT}.spec.hostIPC", Permission.HOST_IPC),
    (volume(hostPath={"path": "/data/x"}), f"{VOLUME_AT}.hostPath", Permission.HOST_PATH),
    (
        main(ports=[{"containerPort": 1, "hostPort": 80}]),
        f"{MAIN_AT}.ports[0].hostPort",
        Permission.HOST_PORT,
    ),
    (
        main(securityContext={"seccompProfile": {"type": "Unconfined"}}),
        f"{SECURITY_AT}.seccompProfile.type",
        Permission.UNCONFINED,
    ),
    (
        spec(securityContext={"appArmorProfile": {"type": "Unconfined"}}),
        f"{AT}.spec.securityContext.appArmorProfile.type",
        Permission.UNCONFINED,
    ),
    (
        main(securityContext={"seLinuxOptions": {"type": "spc_t"}}),
        f"{SECURITY_AT}.seLinuxOptions",
        Permission.UNCONFINED,
    ),
    (
        spec(hostUsers=False, **main(securityContext={"procMount": "Unmasked"})["spec"]),
        f"{SECURITY_AT}.procMount",
        Permission.PROC_MOUNT,
    ),
    (
        spec(securityContext={"sysctls": [{"name": "net.core.somaxconn", "value": "1"}]}),
        f"{AT}.spec.securityContext.sysctls",
        Permission.SYSCTLS,
    ),
    (volume(csi={"driver": "d"}), f"{VOLUME_AT}.csi", Permission.OTHER_VOLUMES),
    (
        volume(nfs={"server": "s.example", "path": "/x"}),
        f"{VOLUME_AT}.nfs",
        Permission.OTHER_VOLUMES,
    ),
    (
        volume(ephemeral={"volumeClaimTemplate": CLAIM}),
        f"{VOLUME_AT}.ephemeral",
        Permission.OTHER_VOLUMES,
    ),
    (volume(image={"reference": "a:1"}), f"{VOLUME_AT}.image", Permission.OTHER_VOLUMES),
    (spec(serviceAccountName="admin"), f"{AT}.spec.serviceAccountName", Permission.SERVICE_ACCOUNT),
    (
        spec(automountServiceAccountToken=True),
        f"{AT}.spec.automountServiceAccountToken",
        Permission.SERVICE_ACCOUNT,
    ),
    (
        volume(projected={"sources": [{"serviceAccountToken": {"path": "t"}}]}),
        f"{VOLUME_AT}.projected.sources[0].serviceAccountToken",
        Permission.SERVICE_ACCOUNT,
    ),
]


@pytest.mark.parametrize(
    ("template", "field", "permission"), GRANTABLE, ids=lambda each: str(each)[:60]
)
def test_fields_that_need_a_permission(template: Json, field: str, permission: Permission) -> None:
    assert [found for found, _ in errors_of(a_request(template))] == [field]
    others = {each.value: [{}] for each in Permission if each is not permission}
    tables = {
        "host_path_roots": ["/data"],
        "nfs_servers": ["*.example"],
        "csi_drivers": ["d"],
    }
    almost = PodPolicy.model_validate({"allow": others, **tables})
    assert [found for found, _ in errors_of(a_request(template), almost)] == [field]
    granted = PodPolicy.model_validate({"allow": {permission: [{"users": ["ada"]}]}, **tables})
    assert errors_of(a_request(template), granted) == []
    assert errors_of(a_request(template), granted, owner="bob") != []


# Never, whatever is granted.
NEVER: list[tuple[Json, str]] = [
    (spec(nodeName="n1"), "spec.nodeName"),
    (spec(nodeSelector={"a": "b"}), "spec.nodeSelector"),
    (spec(affinity={}), "spec.affinity"),
    (spec(topologySpreadConstraints=[]), "spec.topologySpreadConstraints"),
    (spec(schedulerName="other"), "spec.schedulerName"),
    (spec(schedulingGates=[{"name": "x"}]), "spec.schedulingGates"),
    (spec(priorityClassName="system-node-critical"), "spec.priorityClassName"),
    (spec(priority=1), "spec.priority"),
    (spec(preemptionPolicy="Never"), "spec.preemptionPolicy"),
    (spec(runtimeClassName="kata"), "spec.runtimeClassName"),
    (spec(restartPolicy="Always"), "spec.restartPolicy"),
    (spec(activeDeadlineSeconds=5), "spec.activeDeadlineSeconds"),
    (spec(terminationGracePeriodSeconds=0), "spec.terminationGracePeriodSeconds"),
    (spec(hostname="x"), "spec.hostname"),
    (spec(subdomain="x"), "spec.subdomain"),
    (spec(shareProcessNamespace=True), "spec.shareProcessNamespace"),
    (spec(imagePullSecrets=[{"name": "x"}]), "spec.imagePullSecrets"),
    (spec(ephemeralContainers=[{"name": "x"}]), "spec.ephemeralContainers"),
    (spec(resourceClaims=[]), "spec.resourceClaims"),
    (spec(overhead={}), "spec.overhead"),
    (spec(dnsPolicy="None"), "spec.dnsPolicy"),
    (spec(brandNew=1), "spec.brandNew"),
    (spec(containers=None), "spec.containers"),
    ({"kind": "Pod"}, "kind"),
    ({"status": {}}, "status"),
    ({"metadata": {"name": "x"}}, "metadata.name"),
    ({"metadata": {"namespace": "kube-system"}}, "metadata.namespace"),
    ({"metadata": {"ownerReferences": []}}, "metadata.ownerReferences"),
    ({"metadata": {"finalizers": ["x"]}}, "metadata.finalizers"),
    ({"metadata": {"labels": {"shiftwork.dev/task": "x"}}}, "metadata.labels.shiftwork.dev/task"),
    (
        {"metadata": {"labels": {"app.kubernetes.io/managed-by": "x"}}},
        "metadata.labels.app.kubernetes.io/managed-by",
    ),
    (
        {"metadata": {"annotations": {"a.shiftwork.dev/x": "x"}}},
        "metadata.annotations.a.shiftwork.dev/x",
    ),
    (
        {"metadata": {"annotations": {"cdi.k8s.io/gpus": "nvidia.com/gpu=all"}}},
        "metadata.annotations.cdi.k8s.io/gpus",
    ),
    (
        {
            "metadata": {
                "annotations": {"container.apparmor.security.beta.kubernetes.io/main": "unconfined"}
            }
        },
        "metadata.annotations.container.apparmor.security.beta.kubernetes.io/main",
    ),
    (
        {"metadata": {"annotations": {"io.katacontainers.config.x": "1"}}},
        "metadata.annotations.io.katacontainers.config.x",
    ),
    ({"metadata": {"labels": {"a": "not a value"}}}, "metadata.labels.a"),
    ({"metadata": {"labels": {"a": 5}}}, "metadata.labels.a"),
    (main(command=["sh"]), "spec.containers[0].command"),
    (main(args=["-c"]), "spec.containers[0].args"),
    (main(image="x:1"), "spec.containers[0].image"),
    (main(workingDir="/x"), "spec.containers[0].workingDir"),
    (main(imagePullPolicy="Never"), "spec.containers[0].imagePullPolicy"),
    (main(resources={"limits": {"nvidia.com/gpu": 8}}), "spec.containers[0].resources"),
    (main(restartPolicy="Always"), "spec.containers[0].restartPolicy"),
    (main(volumeDevices=[]), "spec.containers[0].volumeDevices"),
    (main(env=[{"name": "SHIFTWORK_RUN_TOKEN", "value": "x"}]), "spec.containers[0].env[0].name"),
    (main(env=[{"name": "MASTER_ADDR", "value": "x"}]), "spec.containers[0].env[0].name"),
    (main(env=[{"name": "PYTHONPATH", "value": "x"}]), "spec.containers[0].env[0].name"),
    (main(env=[{"name": "A"}, {"name": "A"}]), "spec.containers[0].env[1].name"),
    (
        main(
            env=[
                {"name": "A", "valueFrom": {"secretKeyRef": {"name": "tabc-1", "key": "run-token"}}}
            ]
        ),
        "spec.containers[0].env[0].valueFrom.secretKeyRef.name",
    ),
    (
        main(envFrom=[{"secretRef": {"name": "tabc-1"}}]),
        "spec.containers[0].envFrom[0].secretRef.name",
    ),
    (main(envFrom=[{"prefix": "SHIFTWORK_"}]), "spec.containers[0].envFrom[0].prefix"),
    (
        main(volumeMounts=[{"name": "storage-data", "mountPath": "/x"}]),
        "spec.containers[0].volumeMounts[0].name",
    ),
    (
        main(volumeMounts=[{"name": "shiftwork-context", "mountPath": "/x"}]),
        "spec.containers[0].volumeMounts[0].name",
    ),
    (
        main(livenessProbe={"httpGet": {"port": 1, "host": "169.254.169.254"}}),
        "spec.containers[0].livenessProbe.httpGet.host",
    ),
    (
        main(lifecycle={"preStop": {"tcpSocket": {"port": 1, "host": "10.0.0.1"}}}),
        "spec.containers[0].lifecycle.preStop.tcpSocket.host",
    ),
    (
        main(securityContext={"capabilities": {"add": ["BPF"]}}),
        "spec.containers[0].securityContext.capabilities.add[0]",
    ),
    (beside(name="shiftwork-x"), "spec.containers[0].name"),
    (spec(containers=[{"name": "tb"}]), "spec.containers[0].image"),
    (spec(containers=[{"image": "x:1"}]), "spec.containers[0].name"),
    (
        beside(resources={"limits": {"nvidia.com/gpu": 1}}),
        "spec.containers[0].resources.limits.nvidia.com/gpu",
    ),
    (
        beside(resources={"limits": {"cpu": "1"}, "requests": {"cpu": "2"}}),
        "spec.containers[0].resources.requests.cpu",
    ),
    (
        beside(resources={"limits": {"memory": "lots"}}),
        "spec.containers[0].resources.limits.memory",
    ),
    (
        beside(env=[{"name": "NVIDIA_VISIBLE_DEVICES", "value": "all"}]),
        "spec.containers[0].env[0].name",
    ),
    (spec(initContainers=[{"name": "main", "image": "x:1"}]), "spec.initContainers[0].name"),
    (
        spec(
            containers=[{"name": "tb", "image": "x:1"}],
            initContainers=[{"name": "tb", "image": "x:1"}],
        ),
        "spec.initContainers[0].name",
    ),
    (
        spec(initContainers=[{"name": "i", "image": "x:1", "restartPolicy": "OnFailure"}]),
        "spec.initContainers[0].restartPolicy",
    ),
    (volume(hostPath={"path": "/etc"}), "spec.volumes[0].hostPath.path"),
    (volume(hostPath={"path": "/data/../etc"}), "spec.volumes[0].hostPath.path"),
    (volume(nfs={"server": "evil.org", "path": "/"}), "spec.volumes[0].nfs.server"),
    (volume(nfs={"server": "nas.example", "path": "/"}), "spec.volumes[0].nfs.path"),
    (volume(nfs={"server": "nas.example", "path": "/a/../.."}), "spec.volumes[0].nfs.path"),
    (volume(csi={"driver": "secrets-store.csi.k8s.io"}), "spec.volumes[0].csi.driver"),
    *(
        (
            volume(ephemeral={"volumeClaimTemplate": {"spec": {**CLAIM["spec"], **other}}}),
            f"spec.volumes[0].ephemeral.volumeClaimTemplate.spec.{next(iter(other))}",
        )
        for other in (
            {"dataSource": {"kind": "PersistentVolumeClaim", "name": "user.bob.home"}},
            {"dataSourceRef": {"kind": "VolumeSnapshot", "name": "of-bob"}},
            {"volumeName": "pv-of-bob"},
            {"selector": {"matchLabels": {"owner": "bob"}}},
        )
    ),
    (
        volume(
            ephemeral={
                "volumeClaimTemplate": {
                    **CLAIM,
                    "metadata": {"annotations": {"example.com/x": "1"}},
                }
            }
        ),
        "spec.volumes[0].ephemeral.volumeClaimTemplate.metadata.annotations.example.com/x",
    ),
    (volume(awsElasticBlockStore={"volumeID": "x"}), "spec.volumes[0].awsElasticBlockStore"),
    (volume(secret={"secretName": "shiftwork-nats"}), "spec.volumes[0].secret.secretName"),
    (volume(emptyDir={}, secret={"secretName": "a"}), "spec.volumes[0]"),
    (volume(), "spec.volumes[0]"),
    (spec(volumes=[{"name": "storage-x", "emptyDir": {}}]), "spec.volumes[0].name"),
    (spec(volumes="all"), "spec.volumes"),
    (spec(hostNetwork="yes"), "spec.hostNetwork"),
    (spec(hostNetwork=1), "spec.hostNetwork"),
]


STEERING_KEYS = (
    "iam.amazonaws.com/role",
    "vault.hashicorp.com/agent-inject-secret-x",
    "sidecar.istio.io/inject",
    "azure.workload.identity/use",
    "cdi.k8s.io/gpus",
    "io.katacontainers.config.x",
)


@pytest.mark.parametrize("part", ["labels", "annotations"])
@pytest.mark.parametrize("key", STEERING_KEYS)
def test_a_key_with_a_domain_is_refused_unless_the_policy_lists_it(key: str, part: str) -> None:
    asked = a_request({"metadata": {part: {key: "x"}}})
    assert [field for field, _ in errors_of(asked)] == [f"{AT}.metadata.{part}.{key}"]
    assert errors_of(asked, PodPolicy.model_validate({"metadata_keys": [key]})) == []


@pytest.mark.parametrize("pattern", ["*", "app.kubernetes.io/*", "app.*/managed-by"])
def test_the_label_by_which_runs_are_found_is_refused_whatever_is_listed(pattern: str) -> None:
    policy = PodPolicy.model_validate({"metadata_keys": [pattern]})
    asked = a_request({"metadata": {"labels": {"app.kubernetes.io/managed-by": "x"}}})
    assert errors_of(asked, policy) != []


def test_keys_without_a_domain_are_free_unless_the_policy_narrows_them() -> None:
    asked = a_request({"metadata": {"labels": {"experiment": "7"}}})
    assert errors_of(asked) == []
    assert errors_of(asked, PodPolicy.model_validate({"metadata_keys": ["example.com/*"]})) != []


def test_an_export_may_name_the_owners_own_folder() -> None:
    policy = PodPolicy.model_validate(
        {"allow": {"other_volumes": "everyone"}, "nfs_servers": ["nas.example:/home/{owner}"]}
    )
    mine = a_request(volume(nfs={"server": "nas.example", "path": "/home/ada/sets"}))
    assert errors_of(mine, policy) == []
    assert errors_of(mine, policy, owner="bob") != []


@pytest.mark.parametrize(("template", "field"), NEVER, ids=lambda each: str(each)[:70])
def test_fields_that_every_policy_refuses(template: Json, field: str) -> None:
    assert f"{AT}.{field}" in [found for found, _ in errors_of(a_request(template), OPEN)]
    assert errors_of(a_request(template)) != []


@pytest.mark.parametrize(
    "path", ["/shiftwork/sdk", "/etc/shiftwork", "/dev/shm", "/proc/x", "/", "x", "/a/../b"]
)
def test_where_nothing_is_mounted(path: str) -> None:
    template = {
        "spec": {
            "volumes": [{"name": "v", "emptyDir": {}}],
            "containers": [{"name": "main", "volumeMounts": [{"name": "v", "mountPath": path}]}],
        }
    }
    field = f"{MAIN_AT}.volumeMounts[0].mountPath"
    assert errors_of(a_request(template), OPEN) == [(field, path)]


@pytest.mark.parametrize(
    "text", ["[]", "{", '"x"', '{"a": NaN}', "[" * 3000, '{"a":' * 40 + "1" + "}" * 40]
)
def test_malformed_templates_are_refused(text: str) -> None:
    [(field, _)] = errors_of(a_request().model_copy(update={"template": text}), OPEN)
    assert field == "pod.template"


def test_a_template_has_a_size() -> None:
    template = {"metadata": {"annotations": {"a": "x" * 70_000}}}
    [(field, value)] = errors_of(a_request(template), OPEN)
    assert (field, value.split()[1]) == ("pod.template", "bytes")


def test_all_errors_are_reported_at_once_and_none_shows_a_variable() -> None:
    template = {
        "spec": {
            "hostNetwork": True,
            "containers": [
                {
                    "name": "main",
                    "command": ["hunter2"],
                    "env": [
                        {"name": "A", "value": 5},
                        {"name": "B", "vaule": "hunter2"},
                        "hunter2",
                    ],
                    "env_": {"A": "hunter2"},
                }
            ],
        }
    }
    found = errors_of(a_request(template))
    assert [field.removeprefix(f"{AT}.spec.") for field, _ in found] == [
        "hostNetwork",
        "containers[0].command",
        "containers[0].env[0].value",
        "containers[0].env[1].vaule",
        "containers[0].env[2]",
        "containers[0].env_",
    ]
    assert "hunter2" not in str(found)


def test_the_error_for_a_misspelt_field_suggests_the_right_one() -> None:
    [found] = check_pod(a_task(a_request(spec(toleration=[]))), ADA, PodPolicy(), needs_image=True)
    assert found.fix == "did you mean tolerations?"


BASE: Json = {
    "apiVersion": "v1",
    "kind": "Pod",
    "metadata": {"name": "p", "labels": {"ours": "1"}, "annotations": {"ours": "1"}},
    "spec": {
        "securityContext": {
            "runAsNonRoot": True,
            "runAsUser": 10_001,
            "seccompProfile": {"type": "RuntimeDefault"},
        },
        "tolerations": [{"key": "a", "operator": "Exists"}],
        "containers": [
            {
                "name": "main",
                "command": ["train"],
                "env": [{"name": "A", "value": "1"}, {"name": "B", "value": "1"}],
                "securityContext": {
                    "allowPrivilegeEscalation": False,
                    "capabilities": {"drop": ["ALL"], "add": ["IPC_LOCK"]},
                },
                "volumeMounts": [{"name": "d", "mountPath": "/d", "readOnly": True}],
            }
        ],
        "volumes": [{"name": "d", "emptyDir": {}}],
    },
}


def merge(template: Json, policy: PodPolicy | None = None) -> Json:
    before = copy.deepcopy(BASE)
    unchanged = copy.deepcopy(template)
    found = merged(BASE, template, policy or PodPolicy())
    assert (BASE, template) == (before, unchanged), "what goes in is left as it is"
    return found


def test_an_empty_template_changes_nothing() -> None:
    assert merged(BASE, read_template(""), PodPolicy()) == BASE


def test_the_lists_that_matter_are_merged_by_their_keys() -> None:
    found = merge(
        {
            "metadata": {"labels": {"mine": "2"}, "annotations": {"mine": "2"}},
            "spec": {
                "tolerations": [{"key": "a", "operator": "Exists"}, {"key": "b"}],
                "volumes": [{"name": "mine", "emptyDir": {"medium": "Memory"}}],
                "containers": [
                    {
                        "name": "main",
                        "env": [{"name": "B", "value": "2"}, {"name": "C", "value": "2"}],
                        "volumeMounts": [
                            {"name": "mine", "mountPath": "/d"},
                            {"name": "mine", "mountPath": "/e"},
                        ],
                        "stdin": True,
                        "securityContext": {"capabilities": {"drop": ["NET_RAW"]}},
                    }
                ],
            },
        }
    )
    assert found["metadata"]["labels"] == {"ours": "1", "mine": "2"}
    assert found["metadata"]["annotations"] == {"ours": "1", "mine": "2"}
    assert found["spec"]["tolerations"] == [{"key": "a", "operator": "Exists"}, {"key": "b"}]
    assert [each["name"] for each in found["spec"]["volumes"]] == ["d", "mine"]
    [container] = found["spec"]["containers"]
    assert container["env"] == [
        {"name": "A", "value": "1"},
        {"name": "B", "value": "2"},
        {"name": "C", "value": "2"},
    ]
    # A mount is replaced as a whole, so that nothing of the old one is left in it.
    assert container["volumeMounts"] == [
        {"name": "mine", "mountPath": "/d"},
        {"name": "mine", "mountPath": "/e"},
    ]
    assert container["command"] == ["train"]
    assert container["stdin"] is True
    assert container["securityContext"]["capabilities"] == {"drop": ["ALL"], "add": ["IPC_LOCK"]}


def test_containers_beside_the_task_get_the_restricted_defaults() -> None:
    found = merge(
        {
            "spec": {
                "containers": [{"name": "tb", "image": "tb:1"}],
                "initContainers": [{"name": "s", "image": "s:1", "restartPolicy": "Always"}],
            }
        },
        PodPolicy(read_only_root=True),
    )
    for container in (found["spec"]["containers"][1], found["spec"]["initContainers"][0]):
        assert container["securityContext"] == {
            "allowPrivilegeEscalation": False,
            "capabilities": {"drop": ["ALL"]},
            "readOnlyRootFilesystem": True,
        }
        assert container["env"] == [{"name": "NVIDIA_VISIBLE_DEVICES", "value": "void"}]
    found["spec"]["containers"] = found["spec"]["containers"][1:]
    assert violations(found) == []


def test_what_was_granted_makes_a_pod_that_kubernetes_takes() -> None:
    found = merge(
        {
            "spec": {
                "hostNetwork": True,
                "securityContext": {"runAsUser": 0},
                "containers": [{"name": "main", "securityContext": {"privileged": True}}],
            }
        }
    )
    assert found["spec"]["dnsPolicy"] == "ClusterFirstWithHostNet"
    assert found["spec"]["securityContext"]["runAsNonRoot"] is False
    security = found["spec"]["containers"][0]["securityContext"]
    assert security["allowPrivilegeEscalation"] is True


def test_a_template_with_thousands_of_errors_costs_no_more_than_one_with_fifty(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    compared = counted_comparisons(monkeypatch)
    for fields in (
        {f"containres{number}": 1 for number in range(3000)},
        {"spec": {f"containres{number}": 1 for number in range(3000)}},
        {"spec": {"containers": [{"name": f"c{n}", "imgae": "x"} for n in range(1000)]}},
        {"spec": {"x" * 50_000: 1}},
    ):
        compared.clear()
        found = errors_of(a_request(fields), OPEN)
        assert 1 <= len(found) <= 50
        assert len(compared) <= 50
        assert all(len(field) <= 300 for field, _ in found)
