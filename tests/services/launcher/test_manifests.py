"""From orders to Kubernetes objects: the kept ones, and what is true of all of them."""

from __future__ import annotations

import copy
import json
import os
import re
import zlib
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any, TypeVar

import pytest
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st

from libs.contracts.ids import RunId, TaskId, is_label_value
from libs.contracts.messages import EnvSource, PodRequest, Role
from libs.pods import template_fields
from libs.pods.field_errors import PodRefusedError
from libs.pods.formats import is_object_name
from libs.pods.kubernetes_names import pod_name
from libs.pods.pod_policy import PodPolicy
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
from services.launcher.domain.master_ports import PortRange
from services.launcher.hosts import run_port
from services.launcher.manifests import (
    SECRET_BYTES_MAX,
    SECRET_RANKS_MAX,
    RunManifests,
    build_manifests,
    run_name,
)
from services.launcher.pod_spec import literal
from services.launcher.runtimes.port import RankOrder, RunOrder
from tests.libs.pods.oracle import containers, violations
from tests.services.launcher.manifest_cases import CASES, PODS, an_order

Json = dict[str, Any]
T = TypeVar("T")
Draw = Callable[[st.SearchStrategy[T]], T]
GOLDEN = Path(__file__).with_name("manifests")
TOKEN = "SHIFTWORK_RUN_TOKEN"
UID = "11111111-2222-3333-4444-555555555555"


def documents(objects: RunManifests) -> list[Json]:
    service = [objects.service] if objects.service else []
    return [objects.run_object, *objects.secrets, *service, *objects.pods]


def as_text(objects: RunManifests) -> str:
    # Through JSON, so that what is the same object twice is not written as a reference.
    plain = json.loads(json.dumps(documents(objects)))
    return yaml.safe_dump_all(plain, sort_keys=False, width=100)


@pytest.mark.parametrize("name", CASES)
def test_the_manifests_match_the_golden_files(name: str) -> None:
    """UPDATE_MANIFESTS=1 rewrites them; read the difference."""
    text = as_text(CASES[name].objects().owned_by(UID))
    path = GOLDEN / f"{name}.yaml"
    if os.environ.get("UPDATE_MANIFESTS"):
        path.write_text(text)
    assert text == path.read_text()


def test_there_is_no_golden_file_without_a_case() -> None:
    assert {path.stem for path in GOLDEN.glob("*.yaml")} == set(CASES)


@pytest.mark.parametrize("name", CASES)
def test_the_restricted_profile_holds_unless_more_was_granted(name: str) -> None:
    case = CASES[name]
    for pod in case.objects().pods:
        assert bool(violations(pod)) is not case.restricted, violations(pod)


@pytest.mark.parametrize("name", CASES)
def test_the_same_order_gives_the_same_bytes(name: str) -> None:
    case = CASES[name]
    before = copy.deepcopy(case)
    assert json.dumps(documents(case.objects())) == json.dumps(documents(before.objects()))
    assert case == before


def test_text_that_kubernetes_would_expand_arrives_unchanged() -> None:
    for text in ("$(HOME)", "$$(HOME)", "$$", "a$", "$HOME", "$$$x", "${A}", "$((1+1))", "$$$("):
        assert expanded(literal(text), {"HOME": "/root", "(1+1": "no"}) == text


def expanded(text: str, variables: dict[str, str]) -> str:
    """Expand as Kubernetes does: ``$$`` is one ``$``, ``$(NAME)`` a known variable's value."""
    found, at = "", 0
    while at < len(text):
        if text[at] == "$" and text[at + 1 : at + 2] == "$":
            found, at = found + "$", at + 2
        elif text[at] == "$" and text[at + 1 : at + 2] == "(" and ")" in text[at:]:
            end = text.index(")", at)
            name = text[at + 2 : end]
            found, at = found + variables.get(name, f"$({name})"), end + 1
        else:
            found, at = found + text[at], at + 1
    return found


def test_a_gang_uses_rank_0s_name_and_a_single_rank_uses_localhost() -> None:
    env = {
        size: {each["name"]: each.get("value") for each in pod["spec"]["containers"][0]["env"]}
        for size in (1, 3)
        for pod in build_manifests(an_order(size), PodPolicy(default_image="x"), PODS).pods
    }
    run = RunId(TaskId("task"), 1)
    port = str(20_000 + zlib.crc32(b"task.1") % 8_000)
    assert (env[1]["MASTER_ADDR"], env[1]["MASTER_PORT"]) == ("127.0.0.1", port)
    assert (env[3]["MASTER_ADDR"], env[3]["PET_MASTER_PORT"]) == ("task-1-0.task-1", port)
    assert run_port(run, PortRange(5, 5)) == 5


def test_many_ranks_get_several_secrets_below_the_size_limit() -> None:
    order = an_order(1000)
    objects = build_manifests(order, PodPolicy(default_image="x"), PODS)
    assert [secret["metadata"]["name"] for secret in objects.secrets] == [
        "task-1",
        "task-1-c1",
        "task-1-c2",
    ]
    assert max(len(each["stringData"]) for each in objects.secrets) <= SECRET_RANKS_MAX + 1
    large = replace(
        order,
        ranks=tuple(replace(rank, context="x" * 100_000) for rank in order.ranks[:40]),
    )
    objects = build_manifests(large, PodPolicy(default_image="x"), PODS)
    for secret in objects.secrets:
        assert sum(map(len, secret["stringData"].values())) <= SECRET_BYTES_MAX + 100
    finds_its_context(large, objects)


def finds_its_context(order: RunOrder, objects: RunManifests) -> None:
    held = {secret["metadata"]["name"]: secret["stringData"] for secret in objects.secrets}
    for rank, pod in zip(order.ranks, objects.pods, strict=True):
        [volume] = [v for v in pod["spec"]["volumes"] if v["name"] == "shiftwork-context"]
        [item] = volume["secret"]["items"]
        assert held[volume["secret"]["secretName"]][item["key"]] == rank.context


def test_a_launch_validates_the_policy_again() -> None:
    order = an_order(pod=PodRequest(image="x", template='{"spec": {"hostNetwork": true}}'))
    with pytest.raises(PodRefusedError, match=r"pod\.template\.spec\.hostNetwork: is not allowed"):
        build_manifests(order, PodPolicy(), PODS)
    with pytest.raises(PodRefusedError, match="there is no image") as caught:
        build_manifests(an_order(), PodPolicy(), PODS)
    assert [each.field for each in caught.value.errors] == ["pod.image"]


# Every order.

TEXTS = st.text(st.characters(codec="utf-8", exclude_characters="\0"), max_size=30)
OWNERS = st.one_of(
    st.from_regex(r"[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?", fullmatch=True),
    TEXTS.filter(bool),
    st.just("Ada Lovelace <ada@example.com> " * 4),
)
ENV = st.dictionaries(st.from_regex(r"[A-Z_][A-Z0-9_]{0,10}", fullmatch=True), TEXTS, max_size=3)


@st.composite
def orders(draw: Draw[Any], pod: PodRequest | None = None) -> RunOrder:
    ranks = draw(st.integers(1, 4))
    roles = ("worker", "ps")
    task = draw(st.from_regex(r"[a-z][a-z2-7]{0,25}", fullmatch=True))
    env = {**draw(ENV), TOKEN: "the-run-token"}
    gpus = draw(st.integers(0, 8))
    order = an_order(
        ranks,
        gpus=gpus,
        pod=pod or PodRequest(image="x:1", shm_bytes=draw(st.none() | st.integers(1, 2**40))),
        roles=tuple(Role(name=name, replicas=ranks, command=("x",)) for name in roles),
        tolerations=tuple(
            draw(st.lists(st.sampled_from(["a", "b=c", "example.com/x"]), max_size=3))
        ),
    )
    return replace(
        order,
        run_id=RunId(TaskId(task), draw(st.integers(0, 2**31 - 1))),
        owner=draw(OWNERS),
        team=draw(st.just("") | OWNERS),
        ranks=tuple(
            replace(
                rank,
                node_id=draw(st.from_regex(r"[a-z0-9]([-a-z0-9.]{0,60}[a-z0-9])?", fullmatch=True)),
                argv=tuple(draw(st.lists(TEXTS, min_size=1, max_size=3))),
                env=env,
                context=json.dumps({"run_token": "the-run-token", "rank": rank.rank}),
                role=draw(st.sampled_from(roles)),
                cpus=draw(st.none() | st.floats(0.0001, 512, allow_nan=False)),
                memory_bytes=draw(st.none() | st.integers(1, 2**50)),
            )
            for rank in order.ranks
        ),
    )


POLICIES = [
    PodPolicy(),
    PodPolicy(sdk_image="sdk:1", read_only_root=True),
    CASES["all-that-a-site-may-configure"].policy,
]
LABEL_KEY = re.compile(r"([a-z0-9.-]{1,253}/)?[A-Za-z0-9]([-A-Za-z0-9_.]{0,61}[A-Za-z0-9])?")


@settings(max_examples=60, deadline=None)
@given(orders(), st.sampled_from(POLICIES))
def test_every_order_gives_valid_objects(order: RunOrder, policy: PodPolicy) -> None:
    objects = build_manifests(order, policy, PODS).owned_by(UID)
    made = documents(objects)
    names = [(each["kind"], each["metadata"]["name"]) for each in made]
    assert len(set(names)) == len(names)
    for each in made:
        metadata = each["metadata"]
        assert is_object_name(metadata["name"])
        assert metadata["namespace"] == "shiftwork-tasks"
        assert metadata["labels"]["shiftwork.dev/task"] == order.run_id.task_id
        assert metadata["labels"]["shiftwork.dev/attempt"] == str(order.run_id.attempt)
        assert metadata["labels"]["app.kubernetes.io/managed-by"] == "shiftwork"
        assert all(LABEL_KEY.fullmatch(key) for key in metadata["labels"])
        assert all(is_label_value(value) for value in metadata["labels"].values())
        if each["kind"] != "ConfigMap":
            [owner] = metadata["ownerReferences"]
            assert (owner["name"], owner["uid"]) == (run_name(order.run_id), UID)
    assert len(run_name(order.run_id)) <= 63
    for rank, pod in zip(order.ranks, objects.pods, strict=True):
        is_the_rank(order, rank, pod)
        assert violations(pod) == []
    assert (objects.service is None) is (len(order.ranks) == 1)
    finds_its_context(order, objects)


def is_the_rank(order: RunOrder, rank: RankOrder, pod: Json) -> None:
    """The pod has the plan's own values, whatever else it has."""
    name = pod_name(order.run_id, rank.rank)
    spec = pod["spec"]
    assert pod["metadata"]["name"] == spec["hostname"] == name
    assert len(name) <= 63
    assert pod["metadata"]["labels"]["shiftwork.dev/rank"] == str(rank.rank)
    assert pod["metadata"]["annotations"]["shiftwork.dev/owner"] == order.owner
    assert spec["restartPolicy"] == "Never"
    assert spec["enableServiceLinks"] is False
    [term] = spec["affinity"]["nodeAffinity"]["requiredDuringSchedulingIgnoredDuringExecution"][
        "nodeSelectorTerms"
    ]
    assert term == {
        "matchFields": [{"key": "metadata.name", "operator": "In", "values": [rank.node_id]}]
    }
    assert set(spec) & {"nodeName", "nodeSelector"} == set()
    [main] = [each for each in spec["containers"] if each["name"] == "main"]
    assert [expanded(word, {"HOME": "no"}) for word in main["command"]] == list(rank.argv)
    assert "args" not in main
    env = {each["name"]: each for each in main["env"]}
    assert len(env) == len(main["env"])
    assert env[TOKEN]["valueFrom"]["secretKeyRef"]["key"] == "run-token"
    assert "the-run-token" not in json.dumps(pod)
    gpus = main["resources"].get("limits", {}).get("nvidia.com/gpu")
    assert gpus == (str(len(rank.gpus)) if rank.gpus else None)
    assert main["resources"].get("limits") == main["resources"].get("requests")
    mounts = [mount["mountPath"] for mount in main["volumeMounts"]]
    assert {"/etc/shiftwork", "/dev/shm"} <= set(mounts)
    assert len(set(mounts)) == len(mounts)
    volumes = [volume["name"] for volume in spec["volumes"]]
    assert len(set(volumes)) == len(volumes)
    for container in containers(pod):
        for mount in container.get("volumeMounts", []):
            assert mount["name"] in volumes
        others = "nvidia.com/gpu" in str(container.get("resources", {}))
        assert container["name"] == "main" or not others


# Every template.

WORDS = [
    "x",
    "main",
    "tb",
    "v",
    "Never",
    "Always",
    "Unconfined",
    "RuntimeDefault",
    "Localhost",
    "/x",
    "/etc/shiftwork",
    "/proc",
    "user.ada.x",
    "task-1",
    "shiftwork-context",
    "storage-sets",
    "ALL",
    "SYS_ADMIN",
    "NET_BIND_SERVICE",
    "IPC_LOCK",
    "0",
    "1Gi",
    "Unmasked",
    "spc_t",
    "10.0.0.1",
    "",
    TOKEN,
    "nvidia.com/gpu",
    "shiftwork.dev/task",
    "nosuid",
    "Bidirectional",
    "IfNotPresent",
]
NUMBERS = [0, 1, 5, 80, 6006, 10_001, -1, 2**40]
ANYTHING = st.sampled_from([None, True, False, [], {}, *WORDS, *NUMBERS])


def values_of(node: Node) -> st.SearchStrategy[Any]:  # noqa: PLR0911 - one for each kind
    """Values as the table of fields has them, right and wrong ones."""
    if isinstance(node, Forbidden):
        return st.sampled_from([*node.harmless, *node.harmless, None, *WORDS, *NUMBERS])
    if isinstance(node, NeedsPermission):
        harmless = [st.sampled_from(node.harmless)] * 2 if node.harmless else []
        return st.one_of(*harmless, values_of(node.of))
    if isinstance(node, SidecarOnly):
        return values_of(node.of)
    if isinstance(node, Leaf):
        return LEAVES[node.kind]
    if isinstance(node, Mapped):
        return st.dictionaries(st.sampled_from(WORDS), ANYTHING, max_size=2)
    if isinstance(node, Items):
        return st.lists(st.deferred(lambda: values_of(node.of)), max_size=2)
    assert isinstance(node, Struct)
    return parts_of(node)


def parts_of(node: Struct) -> st.SearchStrategy[Any]:
    """The required fields and at most two others; what is never let through is rarer."""

    def part(name: str) -> st.SearchStrategy[Any]:
        return st.deferred(lambda: values_of(node.fields[name]))

    others = [
        name
        for name in sorted(set(node.fields) - set(node.required))
        for _ in range(1 if isinstance(node.fields[name], Forbidden) else 6)
    ]
    chosen = st.lists(st.sampled_from(others), max_size=2, unique=True) if others else st.just([])
    return chosen.flatmap(
        lambda names: st.fixed_dictionaries({each: part(each) for each in (*node.required, *names)})
    )


LEAVES: dict[str, st.SearchStrategy[Any]] = {
    "a text": st.sampled_from(WORDS),
    "a whole number": st.sampled_from(NUMBERS),
    "true or false": st.booleans(),
    "a text or a whole number": st.sampled_from([*WORDS, *NUMBERS]),
    "a list of texts": st.lists(st.sampled_from(WORDS), max_size=2),
    "a list of whole numbers": st.lists(st.sampled_from(NUMBERS), max_size=2),
    "an object": st.just({}),
}
# What people try, whether the table allows it or not.
TRIED: list[Json] = [
    {"spec": {"hostNetwork": True}},
    {"spec": {"hostPID": True}},
    {"spec": {"hostIPC": True}},
    {"spec": {"nodeName": "n7"}},
    {"spec": {"serviceAccount": "admin"}},
    {"spec": {"serviceAccountName": "admin"}},
    {"spec": {"securityContext": {"runAsNonRoot": False}}},
    {"spec": {"securityContext": {"runAsUser": 0}}},
    {"spec": {"securityContext": {"seccompProfile": {"type": "Unconfined"}}}},
    {"spec": {"securityContext": {"seccompProfile": None}}},
    {"spec": {"securityContext": {"$patch": "replace"}}},
    {"spec": {"securityContext": {"windowsOptions": {"hostProcess": True}}}},
    {"spec": {"securityContext": {"sysctls": [{"name": "kernel.msgmax", "value": "1"}]}}},
    {"spec": {"volumes": [{"name": "v", "hostPath": {"path": "/"}}]}},
    {"spec": {"volumes": [{"name": "v", "flexVolume": {"driver": "x"}}]}},
    {"spec": {"volumes": [{"name": "v", "secret": {"secretName": "task-1"}}]}},
    {"spec": {"volumes": [{"name": "v", "emptyDir": {}}]}},
    {"spec": {"volumes": [{"name": "shiftwork-context", "emptyDir": {}}]}},
    {"spec": {"tolerations": [{"operator": "Exists"}]}},
    {"spec": {"initContainers": [{"name": "i", "image": "i:1"}]}},
    {"spec": {"initContainers": [{"name": "shiftwork-sdk", "image": "evil:1"}]}},
    {"spec": {"ephemeralContainers": [{"name": "e", "image": "i:1"}]}},
    {
        "metadata": {
            "annotations": {"container.apparmor.security.beta.kubernetes.io/main": "unconfined"}
        }
    },
    {"metadata": {"labels": {"shiftwork.dev/task": "other"}}},
    {"metadata": {"labels": {"mine": "yes"}}},
    *(
        {
            "spec": {
                "containers": [
                    {"name": name, "image": "i:1", **more}
                    if name != "main"
                    else {"name": name, **more}
                ]
            }
        }
        for name in ("main", "tb")
        for more in (
            {},
            {"command": ["sh"]},
            {"securityContext": {"privileged": True}},
            {"securityContext": {"allowPrivilegeEscalation": True}},
            {"securityContext": {"capabilities": {"add": ["SYS_ADMIN"]}}},
            {"securityContext": {"capabilities": {"drop": []}}},
            {"securityContext": {"capabilities": {"drop": ["KILL"]}}},
            {"securityContext": {"procMount": "Unmasked"}},
            {"securityContext": {"runAsUser": 10_001, "readOnlyRootFilesystem": True}},
            {"securityContext": {"seLinuxOptions": {"user": "system_u"}}},
            {"securityContext": {}},
            {"ports": [{"containerPort": 80, "hostPort": 80}]},
            {"ports": [{"containerPort": 80}]},
            {"env": [{"name": TOKEN, "value": "x"}]},
            {"env": [{"name": "A", "value": "x"}]},
            {"resources": {"limits": {"nvidia.com/gpu": "8"}}},
            {"livenessProbe": {"httpGet": {"port": 1, "host": "10.0.0.1"}}},
            {"lifecycle": {"postStart": {"exec": {"command": ["x"]}}}},
            {"stdin": True, "tty": True},
        )
    ),
]


def joined(parts: list[Json]) -> Json:
    """One template with the contents of all of them; lists are concatenated."""
    found: Any = {}
    for part in parts:
        found = _joined(found, part)
    return found


def _joined(one: Any, other: Any) -> Any:
    if isinstance(one, dict) and isinstance(other, dict):
        return {**one, **{k: _joined(one[k], v) if k in one else v for k, v in other.items()}}
    if isinstance(one, list) and isinstance(other, list):
        return [*one, *other]
    return other


def lets_through(template: Json) -> bool:
    """Whether a template is taken where nothing is granted."""
    pod = PodRequest(image="x:1", template=json.dumps(template))
    try:
        build_manifests(an_order(pod=pod), PodPolicy(), PODS)
    except PodRefusedError:
        return False
    return True


TAKEN = [template for template in TRIED if lets_through(template)]
TEMPLATES = st.one_of(
    st.lists(st.sampled_from(TAKEN), min_size=1, max_size=3).map(joined),
    st.lists(st.sampled_from(TRIED), min_size=1, max_size=2).map(joined),
    values_of(template_fields.TEMPLATE),
    st.tuples(st.sampled_from(TAKEN), values_of(template_fields.POD_SPEC)).map(
        lambda both: joined([both[0], {"spec": both[1]}])
    ),
)


@settings(max_examples=400, deadline=None)
@given(TEMPLATES, st.sampled_from(POLICIES[:2]))
def test_no_template_weakens_a_pod(template: Json, policy: PodPolicy) -> None:
    """Refused, or the pod that comes of it is restricted and still the plan's."""
    pod = PodRequest(image="x:1", template=json.dumps(template))
    order = an_order(2, gpus=2, pod=pod)
    try:
        objects = build_manifests(order, policy, PODS)
    except PodRefusedError:
        return
    plain = build_manifests(an_order(2, gpus=2, pod=PodRequest(image="x:1")), policy, PODS)
    for rank, found, before in zip(order.ranks, objects.pods, plain.pods, strict=True):
        is_the_rank(order, rank, found)
        assert violations(found) == []
        keeps_what_was_there(found, before)


def keeps_what_was_there(pod: Json, before: Json) -> None:
    """All that the platform put into the pod is in it as it was."""
    assert before["metadata"]["labels"].items() <= pod["metadata"]["labels"].items()
    assert before["metadata"]["annotations"].items() <= pod["metadata"]["annotations"].items()
    spec, old = pod["spec"], before["spec"]
    for name, value in old.items():
        assert name in LISTED or spec[name] == value
    # Other fields have Kubernetes' own defaults, or are the pod's own.
    fields = {name: value for name, value in spec.items() if name not in old}
    assert all(name in OWN or value in (False, "ClusterFirst") for name, value in fields.items())
    for name in ("volumes", "tolerations"):
        assert spec[name][: len(old[name])] == old[name]
    assert spec.get("initContainers", [])[: len(old.get("initContainers", []))] == old.get(
        "initContainers", []
    )
    [main], [plain] = [
        [each for each in spec["containers"] if each["name"] == "main"] for spec in (spec, old)
    ]
    for name in ("image", "command", "resources", "volumeMounts", "env"):
        if isinstance(plain[name], list) and name != "command":
            assert all(each in main[name] for each in plain[name] if each["name"] not in MINE)
        else:
            assert main[name] == plain[name]


LISTED = {"containers", "initContainers", "volumes", "tolerations", "securityContext"}
OWN = {"initContainers", "hostAliases", "dnsConfig", "hostUsers"}
# Variables of the policy that a task may override.
MINE = {"HOME", "LANG"}


def test_some_templates_are_accepted() -> None:
    """Otherwise the property above would prove nothing."""
    assert 10 <= len(TAKEN) <= len(TRIED) - 20


def test_variables_from_secrets_and_config_maps_are_references() -> None:
    pod = PodRequest(image="x:1", env_from=(EnvSource(name="K", secret="user.ada.k", key="k"),))
    [found] = build_manifests(an_order(pod=pod), PodPolicy(), PODS).pods
    env = {each["name"]: each for each in found["spec"]["containers"][0]["env"]}
    assert env["K"] == {
        "name": "K",
        "valueFrom": {"secretKeyRef": {"name": "user.ada.k", "key": "k"}},
    }
