"""deploy/: what the files promise, without building anything (that is `make e2e-compose`)."""

import re
import subprocess
from pathlib import Path

import pytest
import yaml

from llmgw_agent.settings import AgentSettings
from llmgw_common.api_keys import looks_valid, mint_key
from llmgw_common.config import load_settings
from llmgw_common.document_errors import InvalidDocumentError
from llmgw_common.documents.catalog import load_catalog
from llmgw_common.mint import new_secret
from llmgw_server.settings import ServerSettings

DEPLOY = Path(__file__).resolve().parents[2] / "deploy"
COMPOSE = yaml.safe_load((DEPLOY / "docker-compose.yml").read_text())
PROGRAMS = ("server", "agent")
DOCKERFILES = [DEPLOY / f"Dockerfile.{program}" for program in PROGRAMS]
UNITS = [DEPLOY / "systemd" / f"llmgw-{program}.service" for program in PROGRAMS]


def settings_of(program, environment):
    if program == "server":
        return load_settings(
            ServerSettings, environment=environment, prefix="LLMGW_SERVER"
        ).settings
    return load_settings(AgentSettings, environment=environment, prefix="LLMGW_AGENT").settings


def image_environment(program):
    """The LLMGW_ variables that an image sets."""
    text = (DEPLOY / f"Dockerfile.{program}").read_text()
    return dict(re.findall(r"(LLMGW_\w+)=(\S+)", text))


@pytest.mark.parametrize("service", sorted(COMPOSE["services"]))
def test_a_composed_service_has_settings_that_its_program_takes(service):
    program = service.split("-")[0]
    environment = image_environment(program) | COMPOSE["services"][service]["environment"]
    settings = settings_of(program, environment)
    if program == "server":
        assert not settings.is_loopback
        assert settings.gateway.auth == "keys"
    else:
        assert settings.stop_engines_on_exit, "a container takes its engines along"


def test_a_server_image_alone_refuses_to_serve_in_plain_text():
    with pytest.raises(InvalidDocumentError, match="not loopback and there is no certificate"):
        settings_of("server", image_environment("server"))


def test_the_composed_catalog_names_what_is_baked_in_and_allowed():
    catalog = load_catalog((DEPLOY / "catalog.yaml").read_text(), "catalog.yaml")
    allow = settings_of("agent", image_environment("agent")).allow
    arguments = COMPOSE["services"]["agent"]["build"]["args"]
    (engine,) = catalog.engines
    (model,) = catalog.models
    assert engine.install.path
    assert Path(engine.install.path).parent in allow.engine_paths
    assert engine.kind in allow.engine_kinds
    assert f"{engine.name} " in arguments["ENGINE"]
    file = Path(model.source.removeprefix("file://"))
    assert file.parent in allow.weights_roots
    assert f"/{file.name}}}" in arguments["WEIGHTS"]


def test_the_port_is_published_on_loopback_unless_told_otherwise():
    (port,) = COMPOSE["services"]["server"]["ports"]
    assert port == "${LLMGW_PUBLISH:-127.0.0.1:8000}:8000"


def test_secrets_come_as_files_and_gpus_only_with_the_profile():
    for name, service in COMPOSE["services"].items():
        assert not any(
            word in variable and not variable.endswith("_FILE")
            for variable in service["environment"]
            for word in ("KEY", "TOKEN", "PASSWORD", "SECRET")
        )
        wants_gpus = bool(service.get("deploy"))
        assert wants_gpus == (service.get("profiles") == ["gpu"]), name
    assert all(set(secret) == {"file"} for secret in COMPOSE["secrets"].values())


def test_every_variable_of_the_compose_file_is_in_the_example():
    used = set(re.findall(r"\$\{(LLMGW_\w+)", (DEPLOY / "docker-compose.yml").read_text()))
    told = set(re.findall(r"^(LLMGW_\w+)=", (DEPLOY / ".env.example").read_text(), re.M))
    assert used == told


@pytest.mark.parametrize("path", DOCKERFILES, ids=lambda path: path.name)
def test_an_image_is_not_root_checks_its_health_and_runs_no_shell(path):
    last_stage = path.read_text().rpartition("\nFROM ")[2]
    assert re.search(r"^ARG BASE=", path.read_text(), re.M)
    assert re.search(r"^USER 10001:10001$", last_stage, re.M)
    assert re.search(r"^HEALTHCHECK .*\\\n +CMD \[", last_stage, re.M)
    assert re.search(r'^CMD \["llmgw-\w+"\]$', last_stage, re.M)


@pytest.mark.parametrize("path", UNITS, ids=lambda path: path.name)
def test_a_unit_sets_only_what_its_program_takes(path):
    program = path.stem.removeprefix("llmgw-")
    environment = dict(re.findall(r"^Environment=(\w+)=(\S+)$", path.read_text(), re.M))
    assert environment
    settings_of(program, environment)
    assert "NoNewPrivileges=yes" in path.read_text()


def test_engines_outlive_the_agents_unit_but_not_for_want_of_anything():
    text = (DEPLOY / "systemd" / "llmgw-agent.service").read_text().splitlines()
    assert "KillMode=process" in text
    assert "SendSIGKILL=no" in text
    assert "PrivateTmp=yes" not in text, "a private /tmp goes with the unit, engines stay"
    assert not any(line.startswith("OOMScoreAdjust") for line in text), "engines inherit it"


def test_secrets_are_made_once_and_are_what_the_server_takes(tmp_path):
    docker = tmp_path / "docker"
    docker.write_text(
        '#!/bin/sh\ncase "$*" in *mint_key*) echo "$A_KEY";; *new_secret*) echo "$A_TOKEN";; esac\n'
    )
    docker.chmod(0o755)
    folder = tmp_path / "secrets"

    def run(**made):
        environment = {"PATH": f"{tmp_path}:/usr/bin:/bin", **made}
        subprocess.run([DEPLOY / "make-secrets", folder], env=environment, check=True)
        return (folder / "admin.key").read_text(), (folder / "join.token").read_text()

    first = run(A_KEY=mint_key(), A_TOKEN=new_secret())
    assert looks_valid(first[0].strip())
    assert len(first[1].strip()) == 43
    assert run(A_KEY=mint_key(), A_TOKEN=new_secret()) == first
    assert folder.stat().st_mode & 0o777 == 0o700
