"""Configuration: precedence, origins, every mistake at once, safe defaults."""

import subprocess
import sys

import pytest
from hypothesis import given
from hypothesis import strategies as st

from llmgw_agent.settings import AgentSettings
from llmgw_common.config import load_settings, render_with_origins
from llmgw_common.document_errors import InvalidDocumentError
from llmgw_common.units import format_bytes, format_duration, parse_bytes, parse_duration
from llmgw_server.settings import ServerSettings


def load(model=ServerSettings, text=None, tmp_path=None, environment=None, flags=None):
    file = None
    if text is not None:
        file = tmp_path / "server.yaml"
        file.write_text(text)
    prefix = "LLMGW_SERVER" if model is ServerSettings else "LLMGW_AGENT"
    return load_settings(
        model, file=file, environment=environment or {}, prefix=prefix, flags=flags
    )


def test_flags_win_over_environment_over_file_over_defaults_and_tell_it(tmp_path):
    text = "reconcile:\n  interval: 7s\n  settling: 8s\nlisten: 127.0.0.1:1\n"
    environment = {"LLMGW_SERVER__RECONCILE__SETTLING": "9s", "LLMGW_SERVER__LISTEN": "127.0.0.1:2"}
    loaded = load(
        text=text, tmp_path=tmp_path, environment=environment, flags={"listen": "127.0.0.1:3"}
    )
    settings = loaded.settings
    assert (settings.reconcile.interval, settings.reconcile.settling) == (7.0, 9.0)
    assert settings.port == 3
    lines = {line.split(":")[0]: line for line in render_with_origins(loaded).splitlines()}
    assert lines["reconcile.interval"].endswith("server.yaml:2")
    assert lines["reconcile.settling"].endswith("# LLMGW_SERVER__RECONCILE__SETTLING")
    assert lines["listen"].endswith("# --listen")
    assert lines["reconcile.lost_after"].endswith("# default")


def test_every_mistake_is_told_with_file_line_and_the_nearest_known_key(tmp_path):
    text = "lisen: 127.0.0.1:1\nreconcile:\n  intervall: 1s\n  settling: soon\n"
    environment = {"LLMGW_SERVER__GATEWAY__AUHT": "none", "LLMGW_SERVER__EVENTS__RETENTION": "x"}
    with pytest.raises(InvalidDocumentError) as caught:
        load(text=text, tmp_path=tmp_path, environment=environment)
    told = "\n".join(str(error) for error in caught.value.errors)
    assert "server.yaml:1: lisen: unknown key 'lisen' (did you mean 'listen'?)" in told
    assert "server.yaml:3: reconcile.intervall: unknown key" in told
    assert "server.yaml:4: reconcile.settling: 'soon' is no duration" in told
    assert "LLMGW_SERVER__GATEWAY__AUHT: unknown variable (did you mean 'auth'?)" in told
    assert "LLMGW_SERVER__EVENTS__RETENTION: events.retention: 'x' is no duration" in told
    assert len(caught.value.errors) == 5


def test_values_of_the_environment_may_be_lists_and_maps():
    environment = {
        "LLMGW_AGENT__LABELS": "{gpu: h200}",
        "LLMGW_AGENT__ALLOW__ENGINE_KINDS": "[simulated]",
        "LLMGW_AGENT__INSECURE": "true",
    }
    settings = load(AgentSettings, environment=environment).settings
    assert settings.labels == {"gpu": "h200"}
    assert settings.allow.engine_kinds == ["simulated"]
    assert settings.insecure is True


def test_a_label_may_be_set_by_its_own_variable():
    environment = {"LLMGW_AGENT__LABELS__RACK": "r7"}
    assert load(AgentSettings, environment=environment).settings.labels == {"rack": "r7"}


def test_secrets_are_never_shown():
    environment = {"LLMGW_SERVER__METRICS_TOKEN": "hunter2"}
    loaded = load(environment=environment)
    shown = render_with_origins(loaded) + repr(loaded.settings)
    assert "hunter2" not in shown
    assert "metrics_token: ***" in shown


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"listen": "0.0.0.0:8000"}, "no certificate"),
        ({"listen": "0.0.0.0:8000", "insecure": True, "gateway": {"auth": "none"}}, "anybody"),
        ({"listen": "8000"}, "match pattern"),
        ({"tls": {"certificate_file": "c.pem"}}, "together"),
    ],
)
def test_an_unsafe_server_is_refused_in_words(settings, words):
    with pytest.raises(ValueError, match=words):
        ServerSettings.model_validate(settings)


def test_the_defaults_listen_on_loopback_with_keys_on():
    settings = ServerSettings()
    assert settings.is_loopback
    assert settings.gateway.auth == "keys"
    assert not settings.insecure


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"server": "http://llmgw.example.org"}, "plain text"),
        ({"server": "llmgw.example.org"}, "write it like"),
        ({"ports": "80-90"}, "band of ports"),
        ({"ports": "30000-20000"}, "band of ports"),
        ({"inventory": {"simulate": "lots"}}, "match pattern"),
    ],
)
def test_an_unsafe_agent_is_refused_in_words(settings, words):
    with pytest.raises(ValueError, match=words):
        AgentSettings.model_validate(settings)


def run(module, *arguments, text, tmp_path):
    file = tmp_path / "x.yaml"
    file.write_text(text)
    return subprocess.run(
        [sys.executable, "-m", module, "--config", str(file), *arguments],
        capture_output=True,
        text=True,
        check=False,
    )


def test_the_server_checks_and_prints_its_configuration(tmp_path):
    found = run("llmgw_server", "--check-config", text="lisen: x\n", tmp_path=tmp_path)
    assert found.returncode == 2
    assert "x.yaml:1: lisen: unknown key 'lisen' (did you mean 'listen'?)" in found.stderr
    found = run("llmgw_server", "--print-config", text="insecure: true\n", tmp_path=tmp_path)
    assert found.returncode == 0
    assert "x.yaml:1" in found.stdout


def test_the_agent_checks_its_configuration(tmp_path):
    found = run("llmgw_agent", "--check-config", text="{}", tmp_path=tmp_path)
    assert (found.returncode, "is fine" in found.stdout) == (0, True)
    found = run("llmgw_agent", "--check-config", text="ports: 1-2\n", tmp_path=tmp_path)
    assert found.returncode == 2
    assert "x.yaml:1: ports:" in found.stderr


@given(milliseconds=st.integers(0, 10**12))
def test_a_formatted_duration_is_read_back_exactly(milliseconds):
    assert round(parse_duration(format_duration(milliseconds / 1000)) * 1000) == milliseconds


@pytest.mark.parametrize(
    ("text", "seconds"), [("1h30m", 5400), ("500ms", 0.5), (30, 30), ("30", 30), ("2d", 172800)]
)
def test_durations_are_read_as_people_write_them(text, seconds):
    assert parse_duration(text) == seconds


@pytest.mark.parametrize(
    ("text", "size"), [("80GiB", 80 << 30), ("1GB", 10**9), ("4096", 4096), ("1.5KiB", 1536)]
)
def test_sizes_are_read_as_people_write_them(text, size):
    assert parse_bytes(text) == size


@pytest.mark.parametrize(
    "bad",
    [
        "",
        "x",
        "-1s",
        "5 minutes",
        "٣s",
        float("nan"),
        float("inf"),
        -1,
        True,
        None,
        "9" * 400 + "s",
    ],
)
def test_what_is_no_duration_is_a_value_error(bad):
    with pytest.raises(ValueError, match=r"."):
        parse_duration(bad)


@pytest.mark.parametrize("bad", ["", "x", "80 GiBs", -1, True, None, 1.5, "9" * 400 + "GiB"])
def test_what_is_no_size_is_a_value_error(bad):
    with pytest.raises(ValueError, match=r"."):
        parse_bytes(bad)


def test_sizes_are_shown_short():
    assert [format_bytes(n) for n in (5, 93_000_000, 3 << 40)] == ["5 B", "88.7 MiB", "3.0 TiB"]
