"""The command line against a real server: what it prints and how it exits."""

import json
import os
import signal
import subprocess
import sys

import pytest
import yaml

from tests.harness import eventually, simulated_catalog

MISTAKES = """\
engines:
  - {name: sim, kind: simulated, versoin: "1"}
models:
  - name: a
    priority: high
    profiles: [{name: p, engine: simm}]
  - name: a
    scaling: {idle_timeout: 15 minutes}
    profiles: [{name: p, engine: sim}]
"""


@pytest.fixture
def llmgw(fleet):
    environment = os.environ | {
        "LLMGW_SERVER": fleet.url,
        "LLMGW_KEY": fleet.key,
        "XDG_CONFIG_HOME": str(fleet.folder / "config"),
        "COLUMNS": "200",
    }

    def run(*arguments, env=None, text=None):
        return subprocess.run(
            [sys.executable, "-m", "llmgw_common.cli.main", *arguments],
            env=environment | (env or {}),
            input=text,
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
        )

    run.environment = environment  # type: ignore[attr-defined]
    return run


def test_the_main_story_on_the_command_line(fleet, llmgw, tmp_path):
    fleet.start_agent("n1")
    file = tmp_path / "catalog.yaml"
    file.write_text(yaml.safe_dump(simulated_catalog({"aliases": ["gpt-4o"]})))
    dry = llmgw("apply", "-f", str(file), "--dry-run")
    assert (dry.returncode, "nothing was applied" in dry.stdout) == (0, True)
    applied = llmgw("apply", "-f", str(file))
    assert (applied.returncode, "revision 1 is in force" in applied.stdout) == (0, True)
    assert "nothing changed" in llmgw("apply", "-f", "-", text=file.read_text()).stdout
    fleet.wait_model("tiny")
    listed = llmgw("models").stdout
    assert "tiny" in listed
    assert "1/1" in listed
    assert "tiny serves: 1 ready, 1 wanted" in llmgw("why", "gpt-4o").stdout
    assert "n1" in llmgw("nodes").stdout
    (replica,) = json.loads(llmgw("-o", "json", "replicas").stdout)
    assert replica["state"] == "ready"
    described = llmgw("describe", "replica", replica["id"]).stdout
    assert "starting -> ready" in described
    assert "cores" in llmgw("describe", "node", "n1").stdout
    assert yaml.safe_load(llmgw("-o", "yaml", "get", "models", "tiny").stdout)["name"] == "tiny"
    assert llmgw("logs", "tiny").stdout.strip().endswith("model loaded")
    events = llmgw("events").stdout
    assert "placed" in events
    assert "by first-admin" in events
    assert llmgw("ask", "tiny", "Hi").stdout.startswith("The quick brown fox")
    assert "server 0.1.0" in llmgw("version").stdout
    assert llmgw("cordon", "n1").returncode == 0
    assert "cordoned" in llmgw("nodes").stdout
    assert llmgw("uncordon", "n1").returncode == 0


def test_five_mistakes_are_five_lines_exit_2_and_nothing_is_applied(fleet, llmgw):
    found = llmgw("apply", "-f", "-", text=MISTAKES)
    assert found.returncode == 2
    lines = [line.strip() for line in found.stderr.splitlines()[1:]]
    assert [line.split(": ")[0] for line in lines] == ["-:2", "-:5", "-:6", "-:7", "-:8"]
    with fleet.api() as api:
        assert api.catalog().revision == 0


@pytest.mark.parametrize(
    ("arguments", "env", "code"),
    [
        (["models"], {"LLMGW_SERVER": "http://127.0.0.1:9"}, 3),
        (["models"], {"LLMGW_KEY": "llmgw-wrong"}, 4),
        (["why", "nobody"], {}, 5),
        (["describe", "node", "nobody"], {}, 5),
        (["apply", "-f", "/does/not/exist"], {}, 2),
        (["keys", "create", "x", "--role", "king"], {}, 2),
        (["ask", "nobody", "Hi"], {}, 1),
        (["nonsense"], {}, 2),
    ],
)
def test_exit_codes_mean_something_and_the_reason_is_on_stderr(llmgw, arguments, env, code):
    found = llmgw(*arguments, env=env)
    assert found.returncode == code
    assert found.stderr
    assert "Traceback" not in found.stderr


def test_keys_are_made_used_listed_and_revoked(llmgw):
    made = llmgw("keys", "create", "ci", "--role", "viewer", "--expires", "90d")
    text = made.stdout.strip()
    assert text.startswith("llmgw-")
    assert llmgw("models", env={"LLMGW_KEY": text}).returncode == 0
    assert llmgw("keys", "list", env={"LLMGW_KEY": text}).returncode == 4
    listed = llmgw("-o", "json", "keys", "list")
    assert text not in listed.stdout
    ident = next(k["id"] for k in json.loads(listed.stdout) if k["name"] == "ci")
    assert llmgw("keys", "revoke", ident).returncode == 0
    assert llmgw("models", env={"LLMGW_KEY": text}).returncode == 4


def test_a_context_keeps_server_and_key(fleet, llmgw):
    bare = {"LLMGW_SERVER": "", "LLMGW_KEY": ""}
    made = llmgw("context", "lab", "--server", fleet.url, "--key", fleet.key, env=bare)
    assert made.returncode == 0
    assert llmgw("models", env=bare).returncode == 0
    assert "* lab" in llmgw("context", env=bare).stdout
    assert llmgw("context", "none", env=bare).returncode == 5


def test_events_are_followed_until_interrupted(fleet, llmgw, tmp_path):
    out = tmp_path / "events.txt"
    with out.open("w") as file:
        following = subprocess.Popen(
            [sys.executable, "-m", "llmgw_common.cli.main", "events", "-f"],
            env=llmgw.environment,
            stdout=file,
        )
    try:
        llmgw("keys", "create", "first")
        eventually(lambda: "key first" in out.read_text(), what="the first event")
        llmgw("keys", "create", "second")
        eventually(lambda: "key second" in out.read_text(), what="the second event")
        following.send_signal(signal.SIGINT)
        assert following.wait(10) == 0
    finally:
        following.kill()
        following.wait()
