"""How each kind is launched: argv lists, what wins, and clear words when something is not there."""

from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from llmgw_agent.engines.adapter import LaunchFacts, flags
from llmgw_agent.engines.llama_cpp import LlamaCpp
from llmgw_agent.engines.registry import ADAPTERS, adapter_for
from llmgw_agent.engines.simulated.script import Script, parse
from llmgw_common.errors import LlmgwError

WORDS = st.text(st.characters(exclude_characters="\0", codec="utf-8"), max_size=8)
NAMES = st.from_regex(r"[a-z][a-z_-]{0,8}", fullmatch=True)
VALUES = st.integers() | WORDS | st.lists(WORDS, max_size=3)


def facts(**fields):
    defaults: dict[str, Any] = {
        "program": None,
        "weights": Path("/w/m.gguf"),
        "served_model": "m",
        "host": "127.0.0.1",
        "port": 20000,
        "key_file": Path("/k"),
        "gpu_indices": (2, 3),
        "args": {},
    }
    return LaunchFacts(**(defaults | fields))


def test_true_is_the_flag_alone_none_and_false_leave_it_out_a_list_repeats_it():
    args = {"a_b": True, "c": False, "d": None, "e": ["x", "y"], "f": 0, "--g": "-1", "h": 0.5}
    assert flags(args) == (
        "--a-b", "--e", "x", "--e", "y", "--f", "0", "--g", "-1", "--h", "0.5",
    )  # fmt: skip


@given(st.dictionaries(NAMES, VALUES, max_size=4))
def test_every_value_is_one_item_right_behind_its_flag(args):
    argv = flags(args)
    lists = [value if isinstance(value, list) else [value] for value in args.values()]
    assert list(argv[1::2]) == [str(item) for items in lists for item in items]
    assert all(flag.startswith("--") and "_" not in flag for flag in argv[0::2])


def test_llama_server_is_found_in_a_wheel_with_its_libraries_beside_it(tmp_path):
    program = tmp_path / "lib" / "python3.11" / "site-packages" / "carrier" / "bin" / "llama-server"
    program.parent.mkdir(parents=True)
    program.touch()
    launch = LlamaCpp().command_line(facts(program=tmp_path, args={"ctx-size": 2048}))
    assert launch.argv[0] == str(program)
    assert launch.argv[-2:] == ("--ctx-size", "2048")
    assert launch.env == {
        "CUDA_VISIBLE_DEVICES": "2,3",
        "LD_LIBRARY_PATH": str(program.parents[1] / "lib"),
    }
    pairs = dict(zip(launch.argv[1:-3:2], launch.argv[2:-2:2], strict=False))
    assert pairs["-m"] == "/w/m.gguf"
    assert pairs["--port"] == "20000"
    assert pairs["--api-key-file"] == "/k"


def test_llama_server_may_be_a_file_or_lie_in_a_bin_folder_or_on_the_path(tmp_path, monkeypatch):
    program = tmp_path / "bin" / "llama-server"
    program.parent.mkdir()
    program.touch(mode=0o755)
    assert LlamaCpp().command_line(facts(program=program)).argv[0] == str(program)
    assert LlamaCpp().command_line(facts(program=tmp_path)).argv[0] == str(program)
    monkeypatch.setenv("PATH", str(program.parent))
    assert LlamaCpp().command_line(facts()).argv[0] == str(program)
    monkeypatch.setenv("PATH", str(tmp_path))
    for missing in (None, tmp_path / "lib"):
        with pytest.raises(LlmgwError, match="llama-server") as caught:
            LlamaCpp().command_line(facts(program=missing))
        assert caught.value.code == "engine_install_failed"


def test_llama_cpp_without_weights_is_refused_in_words(tmp_path):
    (tmp_path / "x").touch()
    with pytest.raises(LlmgwError, match="GGUF"):
        LlamaCpp().command_line(facts(program=tmp_path / "x", weights=None))


def test_a_kind_must_be_allowed_and_known():
    assert {name: adapter.kind for name, adapter in ADAPTERS.items()} == {
        name: name for name in ADAPTERS
    }
    assert adapter_for("simulated", ["simulated"]).kind == "simulated"
    with pytest.raises(LlmgwError, match=r"allow\.engine_kinds: llama_cpp"):
        adapter_for("simulated", ["llama_cpp"])
    with pytest.raises(LlmgwError, match="cannot run engine kind vllm yet"):
        adapter_for("vllm", ["vllm"])


def test_a_script_says_what_its_arguments_said(tmp_path):
    key = tmp_path / "key"
    key.write_text("secret\n")
    argv = ["--port", "1", "--api-key-file", str(key), "--load-s", "3", "--ignore-sigterm"]
    assert parse(argv) == Script(port=1, api_key="secret", load_s=3.0, ignore_sigterm=True)
