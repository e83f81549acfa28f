"""The shape of the tree: sizes, names, docstrings, and that the import contracts bite."""

import ast
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
PACKAGES = ("llmgw_common", "llmgw_server", "llmgw_agent")
FILES_A_FOLDER_MAX = 18
LINES_MAX = 500
TEST_LINES_MAX = 700
FUNCTION_LINES_MAX = 70
#: Words that say nothing about what is in a file (CONTRIBUTING.md, "Rules that CI checks").
EMPTY_WORDS = {
    "util", "utils", "helper", "helpers", "manager", "managers", "base", "misc", "common",
    "service", "services", "processor", "data", "info", "item", "object", "thing", "do",
    "handler", "handlers", "worker", "deployment", "pod", "spec",
}  # fmt: skip
#: Files that are not ours to word, or not text.
NOT_READ = {"uv.lock"}

PRODUCT = sorted(
    path
    for package in PACKAGES
    for path in (ROOT / package).rglob("*.py")
    if "versions" not in path.parts  # migrations are written by a tool
)
TESTS = sorted((ROOT / "tests").rglob("*.py"))


def name(path):
    return str(path.relative_to(ROOT))


@pytest.mark.parametrize("path", PRODUCT, ids=name)
def test_a_product_file_is_small_and_tells_its_story(path):
    text = path.read_text(encoding="utf-8")
    assert text.count("\n") <= LINES_MAX
    assert not EMPTY_WORDS & set(path.stem.split("_"))
    tree = ast.parse(text)
    assert ast.get_docstring(tree), "a module says what it is for"
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            lines = (node.end_lineno or 0) - node.lineno + 1
            assert lines <= FUNCTION_LINES_MAX, f"{node.name} has {lines} lines"


@pytest.mark.parametrize("path", TESTS, ids=name)
def test_a_test_file_can_be_read_in_one_sitting(path):
    assert path.read_text(encoding="utf-8").count("\n") <= TEST_LINES_MAX


def test_no_folder_is_a_heap():
    folders = {path.parent for path in PRODUCT}
    for folder in folders:
        count = len(list(folder.glob("*.py"))) - 1
        assert count <= FILES_A_FOLDER_MAX, f"{name(folder)} holds {count} files"


def test_no_absolute_path_of_a_machine_is_in_the_tree():
    listed = subprocess.run(
        ["git", "ls-files"], cwd=ROOT, capture_output=True, text=True, check=False
    ).stdout.split()
    homes = ("/" + "root/", "/" + "work/", "/" + "Users/")
    for file in listed:
        path = ROOT / file
        if file not in NOT_READ and path.is_file():
            text = path.read_text(encoding="utf-8", errors="replace")
            assert not any(home in text for home in homes), file


def test_breaking_an_import_rule_fails_the_lint_and_names_the_contract(tmp_path):
    for package in PACKAGES:
        shutil.copytree(ROOT / package, tmp_path / package)
    shutil.copy(ROOT / "pyproject.toml", tmp_path)
    program = Path(sys.executable).with_name("lint-imports")
    (tmp_path / "llmgw_server" / "planner" / "planted.py").write_text("import time\n")
    (tmp_path / "llmgw_common" / "planted.py").write_text("import llmgw_server\n")
    found = subprocess.run(
        [program, "--no-cache"], cwd=tmp_path, capture_output=True, text=True, check=False
    )
    assert found.returncode != 0
    broken = [line for line in found.stdout.splitlines() if "BROKEN" in line]
    assert any("deciding code does no I/O" in line for line in broken)
    assert any("common is below server and agent" in line for line in broken)
