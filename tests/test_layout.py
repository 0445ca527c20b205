"""The tree keeps its promises: one skeleton for every service, small modules, doc'd contracts."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest

from libs.contracts.services import SERVICES

ROOT = Path(__file__).resolve().parent.parent
SKELETON = (
    "README.md",
    "__init__.py",
    "__main__.py",
    "main.py",
    "settings.py",
    "handlers.py",
    "store.py",
    "tables.py",
    "migrations/versions",
)
# Modules are cut by idea, not by a line count: this is where one holds more than one idea.
MODULE_LINES_MAX = 700
FUNCTION_LINES_MAX = 70
GENERATED = {
    "libs/contracts/messages.py",
    "libs/contracts/registry.py",
    "libs/sdk/shiftwork/client/async_resources.py",
    "libs/sdk/shiftwork/client/resources.py",
    "libs/sdk/shiftwork/client/types.py",
}


def sources() -> list[Path]:
    return [
        path
        for top in ("services", "libs", "tools", "benchmarks", "examples")
        for path in sorted((ROOT / top).rglob("*.py"))
        if str(path.relative_to(ROOT)) not in GENERATED
        and "migrations" not in path.parts
        and "build" not in path.parts
    ]


def imports_of(path: Path) -> set[str]:
    """Every module that a file imports, and every name from a package, which may be a module."""
    found: set[str] = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            found |= {each.name for each in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module:
            found |= {node.module, *(f"{node.module}.{each.name}" for each in node.names)}
    return found


def callers_named(path: Path) -> list[str]:
    """The callers that a module's docstring names."""
    text = ast.get_docstring(ast.parse(path.read_text())) or ""
    callers = re.findall(r"[Cc]alled (?:only )?by (.*?)(?:\.(?:\s|$)|;|$)", text, re.DOTALL)
    return re.findall(r"``([\w/]+\.py)``", " ".join(callers))


def test_the_callers_that_a_docstring_names_import_the_module() -> None:
    everything = sources()
    wrong: list[str] = []
    seen = 0
    for path in everything:
        module = ".".join(path.relative_to(ROOT).with_suffix("").parts)
        names = {module, module.removeprefix("libs.sdk.")}
        for caller in callers_named(path):
            seen += 1
            near = path.relative_to(ROOT).parts[:2]
            files = [
                each
                for each in everything
                if str(each).endswith(f"/{caller}") and each.relative_to(ROOT).parts[:2] == near
            ]
            if not any(names & imports_of(each) for each in files):
                wrong.append(f"{path.relative_to(ROOT)}: {caller}")
    assert wrong == []
    assert seen > 30


def files_named(service: str) -> set[str]:
    text = (ROOT / "services" / service / "README.md").read_text()
    return set(re.findall(r"`(?:[\w.]+/)*(\w+\.py)`", text))


@pytest.mark.parametrize("service", SERVICES)
def test_a_readme_names_no_file_that_is_not_there(service: str) -> None:
    there = {
        path.name for top in ("services", "libs", "tests") for path in (ROOT / top).rglob("*.py")
    }
    assert files_named(service) - there == set()


def test_the_schedulers_readme_names_every_part_of_its_domain() -> None:
    parts = {path.name for path in (ROOT / "services" / "scheduler" / "domain").glob("*.py")}
    assert parts - files_named("scheduler") == {"__init__.py"}


@pytest.mark.parametrize("service", SERVICES)
def test_every_service_has_the_same_skeleton(service: str) -> None:
    folder = ROOT / "services" / service
    missing = [name for name in SKELETON if not (folder / name).exists()]
    has_domain = (folder / "domain.py").exists() or (folder / "domain").is_dir()
    # The gateway owns a read model and sessions: it projects and decides nothing.
    assert missing == []
    assert has_domain or service == "gateway"


@pytest.mark.parametrize("service", SERVICES)
def test_every_service_readme_has_owns_consumes_publishes_never(service: str) -> None:
    text = (ROOT / "services" / service / "README.md").read_text()
    assert [
        word for word in ("Owns", "Consumes", "Publishes", "Never") if f"**{word}" not in text
    ] == []


def test_every_library_has_a_readme() -> None:
    folders = {path.parent.name for path in (ROOT / "libs").glob("*/__init__.py")}
    assert {each for each in folders if not (ROOT / "libs" / each / "README.md").exists()} == set()


def test_what_routes_answer_is_declared_in_modules_of_shapes() -> None:
    routes = ROOT / "services" / "gateway" / "api"
    declaring = [path.name for path in routes.glob("*.py") if "(TypedDict)" in path.read_text()]
    assert "log_shapes.py" in declaring
    assert [name for name in declaring if not name.endswith("shapes.py")] == []


def test_modules_stay_small() -> None:
    long = {
        str(path.relative_to(ROOT)): lines
        for path in sources()
        if (lines := len(path.read_text().splitlines())) > MODULE_LINES_MAX
    }
    assert long == {}


def test_functions_stay_small() -> None:
    long: list[str] = []
    for path in sources():
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)):
                # Without the signature: a command's options are declared there, one a line.
                lines = (node.end_lineno or node.lineno) - node.body[0].lineno + 1
                if lines > FUNCTION_LINES_MAX:
                    long.append(f"{path.relative_to(ROOT)}:{node.name} {lines}")
    assert long == []


def test_every_module_has_a_docstring() -> None:
    silent = [
        str(path.relative_to(ROOT))
        for path in sources()
        if path.stat().st_size and not ast.get_docstring(ast.parse(path.read_text()))
    ]
    assert silent == []


def test_the_tree_names_no_machine_and_no_registry() -> None:
    """No absolute path of a developer's machine, no registry address."""
    words = ("/wor" + "k/main", "/ro" + "ot/", "pypi" + ".org", "registry.npm" + "js")
    found = [
        f"{path.relative_to(ROOT)}: {word}"
        for pattern in ("*.py", "*.md", "*.toml", "*.txt", "*.proto", "Makefile", "*.yaml")
        for path in ROOT.rglob(pattern)
        if not {".venv", ".venv-frameworks", ".git", "node_modules"} & set(path.parts)
        for word in words
        if word in path.read_text(errors="ignore")
    ]
    assert found == []
