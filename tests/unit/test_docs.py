"""The documentation says what the code does: reference, commands, catalogs and settings in it."""

import re
import shlex
import tomllib
from pathlib import Path

import pytest
import typer
import yaml
from packaging.requirements import Requirement

from docs.gen.write import FOLDER, pages
from llmgw_agent.settings import AgentSettings
from llmgw_common.cli.main import app
from llmgw_common.config import load_settings
from llmgw_common.documents.catalog import load_catalog
from llmgw_server.settings import ServerSettings

ROOT = Path(__file__).resolve().parents[2]
WRITTEN = [
    ROOT / "README.md",
    ROOT / "CONTRIBUTING.md",
    *sorted(
        path
        for path in (ROOT / "docs").rglob("*.md")
        if path.parent not in (FOLDER, ROOT / "docs" / "adr")
    ),
]
BLOCK = re.compile(r"^```(\w+)\n(.*?)^```", re.MULTILINE | re.DOTALL)
LINK = re.compile(r"\]\(([^)#\s]+)(?:#[^)]*)?\)")


def name(path):
    return str(path.relative_to(ROOT))


def blocks(path, *languages):
    return [text for language, text in BLOCK.findall(path.read_text()) if language in languages]


def commands(path):
    """Lines of the shell blocks, continued ones joined; in sessions those after a `$`."""
    for text in blocks(path, "sh"):
        yield from text.replace("\\\n", " ").splitlines()
    for text in blocks(path, "console"):
        yield from (line[2:] for line in text.splitlines() if line.startswith("$ "))


@pytest.mark.parametrize("page", sorted(pages()))
def test_a_committed_reference_page_is_what_the_code_says(page):
    assert (FOLDER / page).read_text(encoding="utf-8") == pages()[page], "run `make reference`"


def test_every_dependency_has_its_line_of_why():
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())
    texts = list(project["project"]["dependencies"]) + list(project["build-system"]["requires"])
    for group in project["dependency-groups"].values():
        texts += [text for text in group if isinstance(text, str)]
    wanted = {Requirement(text).name.lower() for text in texts}
    rows = re.findall(
        r"^\| ([a-z][a-z0-9-]*) \| ", (ROOT / "docs/dependencies.md").read_text(), re.M
    )
    assert sorted(row for row in rows if row != "package") == sorted(wanted)


@pytest.mark.parametrize("path", WRITTEN, ids=name)
def test_commands_in_the_text_exist_with_their_options(path):
    root = typer.main.get_command(app)
    for line in commands(path):
        words = shlex.split(line.replace(".venv/bin/llmgw ", "llmgw "), comments=True)
        if not words or words[0] != "llmgw":
            continue
        command, rest = root, words[1:]
        while hasattr(command, "commands"):
            assert rest, f"{line}: which command?"
            assert rest[0] in command.commands, f"{line}: no command {rest[0]}"
            command, rest = command.commands[rest[0]], rest[1:]
        known = {option for parameter in command.params for option in parameter.opts}
        for word in rest:
            if word.startswith("-") and word != "-":
                assert word in known, f"{line}: no option {word}"


@pytest.mark.parametrize("path", WRITTEN, ids=name)
def test_make_targets_in_the_text_exist(path):
    targets = set(re.findall(r"^([a-z0-9 -]+):", (ROOT / "Makefile").read_text(), re.M))
    known = {target for line in targets for target in line.split()}
    for target in re.findall(r"(?:^|[`\n] *)make ([a-z][a-z0-9-]*)", path.read_text()):
        assert target in known, target


@pytest.mark.parametrize("path", WRITTEN, ids=name)
def test_catalogs_and_settings_in_the_text_are_right(path):
    for text in blocks(path, "yaml"):
        keys = set(yaml.safe_load(text))
        if keys & {"engines", "models"}:
            load_catalog(text, name(path))
            continue
        program = ServerSettings if "listen" in keys else AgentSettings
        file = {ServerSettings: "server.yaml", AgentSettings: "agent.yaml"}[program]
        assert text.startswith(f"# {file}\n"), "a block of settings says which file it is"
        program.model_validate(yaml.safe_load(text))


@pytest.mark.parametrize("path", WRITTEN, ids=name)
def test_links_between_pages_lead_somewhere(path):
    for target in LINK.findall(path.read_text()):
        if "://" not in target:
            assert (path.parent / target).exists(), target


def test_every_page_is_in_the_navigation():
    listed = set(re.findall(r"([\w/-]+\.md)$", (ROOT / "mkdocs.yml").read_text(), re.M))
    there = {str(path.relative_to(ROOT / "docs")) for path in (ROOT / "docs").rglob("*.md")}
    assert listed == there


def test_environment_variables_of_the_reference_are_understood():
    names = set(re.findall(r"`(LLMGW_\w+)`", (FOLDER / "configuration.md").read_text()))
    server = {"LLMGW_SERVER__LOGS__LEVEL": "debug"}
    agent = {"LLMGW_AGENT__LOGS__LEVEL": "debug"}
    assert server.keys() | agent.keys() <= names
    loaded = load_settings(ServerSettings, environment=server, prefix="LLMGW_SERVER")
    assert loaded.settings.logs.level == "debug"
    joined = load_settings(AgentSettings, environment=agent, prefix="LLMGW_AGENT")
    assert joined.settings.logs.level == "debug"
