"""Records that survive, logs that are read, environments that are allowed, ports that are free."""

import os
import re
import socket
import stat

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import SecretStr

from llmgw_agent.engines.adapter import ErrorPattern, Launch, flags
from llmgw_agent.supervisor import exits, ports
from llmgw_agent.supervisor.launch import environment
from llmgw_agent.supervisor.record import Records, ShardRecord
from llmgw_common.errors import LlmgwError
from llmgw_common.protocol.messages import EngineSpec
from tests.agent_builders import make_start


def make_record(**fields):
    defaults = {
        "command": make_start(),
        "access_key": SecretStr("engine-key"),
        "host": "127.0.0.1",
        "port": 20000,
        "boot_id": "b",
        "created_unix_s": 1.0,
    }
    return ShardRecord(**(defaults | fields))


def test_a_record_comes_back_and_only_its_user_may_read_it(tmp_path):
    records = Records(tmp_path / "shards")
    records.write(make_record(pid=42, process_started=7))
    (found,) = records.read_all()
    assert found.pid == 42
    assert found.access_key.get_secret_value() == "engine-key"
    (file,) = (tmp_path / "shards").glob("*.json")
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    records.remove("shd-1")
    assert records.read_all() == []


def test_secrets_of_a_command_are_not_kept(tmp_path):
    records = Records(tmp_path)
    records.write(make_record(command=make_start(secrets={"HF_TOKEN": SecretStr("hf_secret")})))
    assert "hf_secret" not in next(tmp_path.glob("*.json")).read_text()


@given(noise=st.binary(max_size=200))
def test_a_record_that_cannot_be_read_is_no_record(tmp_path_factory, noise):
    folder = tmp_path_factory.mktemp("records")
    (folder / "shd-1.json").write_bytes(noise)
    assert Records(folder).read_all() == []


@given(name=st.text(max_size=40))
def test_no_shard_id_leaves_the_folder(tmp_path_factory, name):
    folder = tmp_path_factory.mktemp("records")
    Records(folder).write(make_record(command=make_start(shard=name)))
    assert [path.parent for path in folder.rglob("*.json")] == [folder]


def test_an_exit_is_explained_by_signal_class_and_last_lines(tmp_path):
    log = tmp_path / "1.log"
    log.write_text("\n".join(f"line {i}" for i in range(100)) + "\nCUDA out of memory: 3 GiB\n")
    error = exits.explain_exit(-9, "watch", log, ())
    assert (error.kind, error.signal, error.exit_code) == ("out_of_memory", 9, None)
    assert len(error.log_tail) == exits.LINES
    assert error.log_tail[-1] == "CUDA out of memory: 3 GiB"
    assert "SIGKILL" in error.text


@pytest.mark.parametrize(
    ("line", "code", "kind"),
    [
        ("bind: Address already in use", 1, "port_taken"),
        ("usage: error: unrecognized arguments: --x", 2, "bad_argument"),
        ("GatedRepoError: 403", 1, "gated_model"),
        ("nothing special", 3, "unknown"),
        ("nothing special", -9, "killed"),
        ("my engine's own words", 1, "weights_unreadable"),
    ],
)
def test_the_class_of_an_exit_comes_from_the_engines_words(tmp_path, line, code, kind):
    log = tmp_path / "1.log"
    log.write_text(line + "\n")
    own = (ErrorPattern(re.compile("my engine's own words"), "weights"),)
    assert exits.explain_exit(code, "watch", log, own).kind == kind


def test_a_log_line_holds_no_control_characters_and_no_key():
    line = "\x1b]52;c;evil\x07 Bearer abcdefghijklmnop llmgw-" + "x" * 43
    found = exits.clean(line)
    assert "\x1b" not in found
    assert "abcdefghijklmnop" not in found
    assert "x" * 43 not in found


def test_a_missing_log_is_an_empty_one(tmp_path):
    assert exits.tail(tmp_path / "none.log") == ()


def test_the_users_values_win_and_each_value_tells_its_origin(monkeypatch):
    monkeypatch.setenv("LLMGW_AGENT__JOIN_TOKEN", "secret")
    engine = EngineSpec(
        name="e", kind="simulated", version="1", env={"VLLM_A": "engine", "VLLM_B": "engine"}
    )
    command = make_start(engine=engine, env={"VLLM_B": "profile"})
    found = environment(
        command, Launch(argv=("x",), env={"VLLM_C": "adapter"}), ["VLLM_*"], "agent-1"
    )
    assert {k: (v.value, v.origin) for k, v in found.items() if k.startswith("VLLM_")} == {
        "VLLM_A": ("engine", "engine"),
        "VLLM_B": ("profile", "profile"),
        "VLLM_C": ("adapter", "adapter"),
    }
    assert found["LLMGW_SHARD_ID"].value == "shd-1"
    assert "LLMGW_AGENT__JOIN_TOKEN" not in found


@pytest.mark.parametrize("name", ["LD_PRELOAD", "PYTHONPATH", "PATH", "LLMGW_SHARD_ID", "OTHER"])
def test_a_catalog_cannot_set_what_would_run_foreign_code(name):
    with pytest.raises(LlmgwError) as caught:
        environment(
            make_start(env={name: "x"}), Launch(argv=("x",)), ["VLLM_*", "LD_*", "*PATH"], "a"
        )
    assert caught.value.code == "refused_by_node"
    assert name in caught.value.message


def test_arguments_become_an_argv_and_never_a_shell():
    found = flags({"a": 1, "b_c": True, "d": None, "e": False, "f": ["x", "y"], "g": "; rm -rf /"})
    assert found == ("--a", "1", "--b-c", "--f", "x", "--f", "y", "--g", "; rm -rf /")


def test_the_proposed_port_is_taken_if_free_else_another_of_the_band():
    with socket.socket() as busy:
        busy.bind(("127.0.0.1", 0))
        busy.listen()
        port = busy.getsockname()[1]
        assert not ports.is_free("127.0.0.1", port)
        band = (port, port + 20)
        found = ports.choose("127.0.0.1", port, band, set(), "seed")
        assert found is not None
        assert found != port
        assert ports.choose("127.0.0.1", found, band, set(), "seed") == found
        assert ports.choose("127.0.0.1", found, band, {found}, "seed") != found
        assert ports.choose("127.0.0.1", port, (port, port), set(), "seed") is None


def test_the_working_processs_own_start_time_is_known():
    from llmgw_agent.supervisor import processes

    assert processes.start_time(os.getpid()) is not None
    assert processes.start_time(2**22 + 1) is None
    assert processes.mark_of(os.getpid()) is None
