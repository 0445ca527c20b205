"""Failures of kubectl and helm become what, where, fix and an exit code."""

from __future__ import annotations

from pathlib import Path

import pytest
from shiftwork.cli.failures import REFUSED, UNREACHABLE, Failure

from services.allinone.kubernetes import programs
from services.allinone.kubernetes.helm import Values
from services.allinone.kubernetes.kubectl import Kubectl, Target, documents, failure

ERRORS = [
    (
        "error: You must be logged in to the server (Unauthorized)",
        "the cluster does not know who you are",
        REFUSED,
    ),
    (
        (
            'E1121 memcache.go:265] "Unhandled" err="Get x: dial tcp: connection refused"\n'
            "The connection to the server 127.0.0.1:1 was refused - did you specify the right host?"
        ),
        "the cluster does not answer (The connection to the server 127.0.0.1:1 was refused",
        UNREACHABLE,
    ),
    (
        "Unable to connect to the server: x509: certificate signed by unknown authority",
        "the certificate of the API server cannot be trusted",
        REFUSED,
    ),
    (
        'Error: Kubernetes cluster unreachable: Get "https://x": dial tcp: lookup x: no such host',
        "the cluster does not answer",
        UNREACHABLE,
    ),
    (
        'error: context "nowhere" does not exist',
        "there is no usable kubeconfig",
        REFUSED,
    ),
    (
        'Error from server (Forbidden): nodes is forbidden: User "ann" cannot list resource',
        'Error from server (Forbidden): nodes is forbidden: User "ann" cannot list',
        REFUSED,
    ),
    (
        'Error from server (NotFound): namespaces "shiftwork" not found',
        'Error from server (NotFound): namespaces "shiftwork" not found',
        REFUSED,
    ),
]


@pytest.mark.parametrize(("error", "what", "code"), ERRORS)
def test_errors_are_reported_as_what_where_fix(error: str, what: str, code: int) -> None:
    found = failure(error, "kubectl get nodes")
    assert found.what.startswith(what)
    assert found.code == code
    assert found.where == "kubectl get nodes"
    assert found.fix


def test_warnings_are_no_part_of_an_error() -> None:
    found = failure("Warning: old API\nerror: something else", "helm upgrade")
    assert found.what == "something else"


def test_several_objects_in_a_row_or_as_a_list_are_read() -> None:
    one, other = '{"kind": "Pod", "n": 1}', '{"kind": "List", "items": [{"n": 2}, {"n": 3}]}'
    assert [each["n"] for each in documents(f"{one}\n{other}\n")] == [1, 2, 3]
    assert documents("") == []


def test_a_program_that_is_missing_is_named_with_the_way_to_get_it(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setenv("SHIFTWORK_CLUSTER_CACHE", str(tmp_path))
    for name in ("helm", "kubectl"):
        monkeypatch.delenv(name.upper(), raising=False)
        with pytest.raises(Failure, match=f"{name} is not on the PATH") as caught:
            programs.find(name)
        assert "install" in caught.value.fix
    built = tmp_path / "helm-1" / "bin" / "helm"
    built.parent.mkdir(parents=True)
    built.write_text("#!/bin/sh\n")
    built.chmod(0o755)
    assert programs.find("helm") == str(built)
    monkeypatch.setenv("HELM", "/nowhere/helm")
    with pytest.raises(Failure, match="/nowhere/helm is no program"):
        programs.find("helm")


def test_an_exit_code_and_a_hang_of_the_program_are_failures(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    program = tmp_path / "kubectl"
    program.write_text('#!/bin/sh\n[ "$2" = hang ] && exec sleep 30\necho "no" >&2\nexit 4\n')
    program.chmod(0o755)
    monkeypatch.setenv("KUBECTL", str(program))
    kubectl = Kubectl(Target())
    with pytest.raises(Failure, match="no") as caught:
        kubectl.run("get", "pods")
    assert caught.value.where == "kubectl get pods (namespace shiftwork)"
    assert kubectl.run("get", "pods", codes=(0, 4)) == ""
    with pytest.raises(Failure, match="does not answer") as caught:
        kubectl.run("hang", seconds_max=0.2)
    assert caught.value.code == UNREACHABLE


def test_values_reach_helm_in_their_order() -> None:
    given = Values((Path("a"), Path("b")), ("x=1",))
    assert given.arguments() == ["--values", "a", "--values", "b", "--set", "x=1"]
    assert Values(sets=("x=1",), added=True).arguments() == [
        "--set",
        "x=1",
        "--reset-then-reuse-values",
    ]
