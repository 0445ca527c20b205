"""The image of all services, as a cluster runs it: no rights, nothing to write to, no secret."""

from __future__ import annotations

import ast
import json
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.images.conftest import TAG, Containers
from tools.images import __main__ as program
from tools.images.catalog import BY_NAME, ROOT
from tools.images.engine import Engine

pytestmark = pytest.mark.containers

SERVICES = ("submit", "scheduler", "launcher", "log_collector", "quota", "monitor", "gateway")
# As the charts' security context and a NetworkPolicy without peers.
CONFINED = ("--read-only", "--tmpfs=/tmp", "--network=none", "--cap-drop=ALL")
LOOK = """
import json, os, pathlib, sys
written, compiled, sources = [], set(), set()
for top in ("/opt", "/usr", "/etc", "/var", "/home", "/root"):
    for folder, _, files in os.walk(top):
        if os.access(folder, os.W_OK):
            written.append(folder)
        if folder.startswith("/opt/shiftwork/app"):
            sources |= {os.path.join(folder, name) for name in files if name.endswith(".py")}
            compiled |= {
                os.path.join(os.path.dirname(folder), name.split(".")[0] + ".py")
                for name in files if name.endswith(".pyc")
            }
print(json.dumps({
    "uid": os.getuid(), "gid": os.getgid(), "written": written,
    "sources": sorted(str(path) for path in sources), "stale": sorted(sources - compiled),
    "sdk": sorted(os.listdir("/opt/shiftwork/sdk")),
    "packages": sorted(
        path.name.lower() for path in pathlib.Path(sys.prefix).glob("lib/python3*/site-packages/*")
    ),
    "leaks": [p for p in ("/etc/pip.conf", "/etc/apt/apt.conf.d/99build",
                          "/etc/apt/sources.list.d/build.list", "/run/secrets/certificates")
              if os.path.exists(p) and os.path.getsize(p)],
}))
"""


def python(containers: Containers, reference: str, *options: str, code: str) -> str:
    done = containers.run(*CONFINED, *options, "--entrypoint=python", reference, "-c", code)
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_it_is_ours_compiled_and_cannot_be_written(
    containers: Containers, image: Callable[[str], str]
) -> None:
    found = json.loads(python(containers, image("platform"), code=LOOK))
    assert (found["uid"], found["gid"]) == (10001, 10001)
    # The place of volumes, and where podman lays a file system of its own; else nothing.
    places = ("/var/lib/shiftwork", "/var/tmp")
    assert [path for path in found["written"] if not path.startswith(places)] == []
    assert found["stale"] == []
    assert found["leaks"] == []
    inside = {path.removeprefix("/opt/shiftwork/app/") for path in found["sources"]}
    tree = {
        str(path.relative_to(ROOT))
        for top in ("services", "libs")
        for path in (ROOT / top).rglob("*.py")
        if not path.is_relative_to(ROOT / "libs" / "sdk")
    }
    assert inside <= tree
    assert {f"services/{name}/__main__.py" for name in SERVICES} <= inside
    assert {"shiftwork", "shiftwork-0.1.0-py3-none-any.whl"} <= set(found["sdk"])
    # Servers, compilers of packages and test programs stay at home.
    unwanted = ("pip", "setuptools", "pytest", "nats_server", "pixeltable", "hypothesis")
    assert [name for name in found["packages"] if name.startswith(unwanted)] == []


@pytest.mark.parametrize("service", SERVICES)
def test_a_service_without_settings_names_them(
    containers: Containers, image: Callable[[str], str], service: str
) -> None:
    done = containers.run(*CONFINED, image("platform"), f"services.{service}")
    assert done.returncode == 2
    prefix = f"SHIFTWORK_{service.upper()}_"
    assert f"{prefix}DATABASE_URL: Field required. Set it in the environment.\n" in done.stderr
    assert "Traceback" not in done.stderr


def test_services_without_servers_report_it_and_end(
    containers: Containers, image: Callable[[str], str], tmp_path: Path
) -> None:
    key = tmp_path / "key"
    key.write_text("only-for-tests")
    key.chmod(0o444)
    tmp_path.chmod(0o755)
    started: dict[str, str] = {}
    for service in SERVICES:  # together: each tries for half a minute
        own = {
            "DATABASE_URL": f"postgresql://{service}@127.0.0.1:1/shiftwork",
            "NATS_URL": "nats://127.0.0.1:1",
            "RUN_TOKEN_KEY_FILE": "/run/key",
            "RUNS_DIR": "/tmp/runs",
            "LOGS_DIR": "/tmp/logs",
            "DATA_FOLDER": "/tmp/launcher",
        }
        variables = [f"--env=SHIFTWORK_{service.upper()}_{key}={own[key]}" for key in own]
        options = (*CONFINED, *variables, f"--volume={key}:/run/key:ro")
        started[service] = containers.start(*options, image("platform"), f"services.{service}")
    for service, container in started.items():
        ended = containers.call("wait", container)
        entries = [json.loads(line) for line in containers.logs(container).splitlines() if line]
        last = [line["problem"] for line in entries if line["event"] == "cannot start"]
        assert (ended.stdout.strip(), len(last)) == ("1", 1), (service, entries)
        assert "127.0.0.1:1" in last[0]


def test_any_other_number_can_run_it_too(
    containers: Containers, image: Callable[[str], str]
) -> None:
    done = containers.run(*CONFINED, "--user=23456:23456", image("platform"), "services.quota")
    assert done.returncode == 2
    assert "Field required" in done.stderr


def test_the_sdk_is_copied_and_used_without_the_platforms_python(
    containers: Containers, image: Callable[[str], str], tmp_path: Path
) -> None:
    tmp_path.chmod(0o777)
    copied = containers.run(
        *CONFINED,
        f"--volume={tmp_path}:/shiftwork/sdk",
        "--entrypoint=cp",
        image("platform"),
        "-r",
        "/opt/shiftwork/sdk/.",
        "/shiftwork/sdk/",
    )
    assert copied.returncode == 0, copied.stderr
    done = containers.run(
        *CONFINED,
        f"--volume={tmp_path}:/shiftwork/sdk:ro",
        "--env=PYTHONPATH=/shiftwork/sdk",
        image("task"),
        "python",
        "examples/gang.py",
        "--steps=5",
        "--out=/tmp/gang",
    )
    assert done.returncode == 0, done.stderr
    assert "rank 0 of 1 from step 0 of 5" in done.stdout


def test_the_command_line_is_in_it(containers: Containers, image: Callable[[str], str]) -> None:
    done = containers.run(
        *CONFINED, "--entrypoint=shiftwork", image("platform"), "submit", "--help"
    )
    assert done.returncode == 0, done.stderr
    assert "--gpus-per-node" in done.stdout


def test_the_usual_signal_stops_it(containers: Containers, image: Callable[[str], str]) -> None:
    waiting = containers.start(
        *CONFINED,
        "--env=SHIFTWORK_QUOTA_DATABASE_URL=postgresql://quota@127.0.0.1:1/x",
        "--env=SHIFTWORK_QUOTA_NATS_URL=nats://127.0.0.1:1",
        "--entrypoint=python",
        image("platform"),
        "-c",
        "import asyncio; from libs.service.run import stop_on_signal\n"
        "async def main():\n"
        "  stop = asyncio.Event()\n"
        "  async with stop_on_signal(stop.set):\n"
        "    print('waits', flush=True); await stop.wait(); print('stopped', flush=True)\n"
        "asyncio.run(main())",
    )
    containers.wait_for(lambda: "waits" in containers.logs(waiting), waiting)
    assert containers.call("stop", "--time=10", waiting).returncode == 0
    state = containers.call("inspect", "--format={{.State.ExitCode}}", waiting)
    assert (state.stdout.strip(), "stopped" in containers.logs(waiting)) == ("0", True)


def test_every_module_of_the_image_can_be_imported(
    containers: Containers, image: Callable[[str], str]
) -> None:
    """What only other machines have (servers in wheels) must not be needed to import a module."""
    code = (
        "import importlib, pathlib\n"
        "app, faults = pathlib.Path('/opt/shiftwork/app'), {}\n"
        "for path in sorted(app.rglob('*.py')):\n"
        "    parts = path.relative_to(app).with_suffix('').parts\n"
        "    if 'migrations' in parts or 'alembic' in parts or parts[-1] == '__main__':\n"
        "        continue\n"
        "    name = '.'.join(parts[:-1] if parts[-1] == '__init__' else parts)\n"
        "    try:\n"
        "        importlib.import_module(name)\n"
        "    except Exception as problem:\n"
        "        faults[name] = repr(problem)\n"
        "print(faults)"
    )
    assert ast.literal_eval(python(containers, image("platform"), code=code)) == {}


def test_two_builds_have_the_same_layers(
    engine: Engine, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    """From what is cached or from nothing: the same bits."""
    tree = tmp_path / "tree"  # at which nobody works meanwhile
    for name in ("docker", "examples", "libs", "requirements", "services"):
        shutil.copytree(ROOT / name, tree / name, ignore=shutil.ignore_patterns("__pycache__"))
    shutil.copy(ROOT / ".dockerignore", tree)
    found: list[list[str]] = []
    try:
        for tag, fresh in (("test-a", []), ("test-b", ["--fresh"])):
            where = [f"--engine={engine.program}", f"--tag={tag}"]
            arguments = [*where, "build", "platform", f"--tree={tree}", *fresh]
            assert program.main(arguments) == 0, capsys.readouterr().err
            found.append(engine.layers(BY_NAME["platform"].reference(tag)))
        assert found[0] == found[1]
        # The base's and at least one of ours.
        assert len(found[0]) > 2
    finally:
        for tag in ("test-a", "test-b"):
            for name in ("platform", "base"):
                Containers(engine).call("rmi", f"localhost/shiftwork/{name}:{tag}")


def test_an_archive_can_be_made_of_it(
    engine: Engine, image: Callable[[str], str], tmp_path: Path
) -> None:
    image("nats")
    assert (
        program.main([f"--engine={engine.program}", f"--tag={TAG}", "save", str(tmp_path), "nats"])
        == 0
    )
    listed = Containers(engine).call("image", "inspect", image("nats")).stdout
    assert (tmp_path / "nats.tar").stat().st_size > 10_000_000
    assert json.loads(listed)[0]["Config"]["Entrypoint"] == ["nats-server"]
