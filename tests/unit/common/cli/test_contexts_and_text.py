"""Which server and key, and texts that cannot drive a terminal."""

import stat

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import SecretStr

from llmgw_common.cli import contexts
from llmgw_common.cli.demo import catalogs
from llmgw_common.cli.demo.story import DemoError, parse_fleet
from llmgw_common.cli.output import cell
from llmgw_common.cli.text import plain
from llmgw_common.documents.catalog import load_catalog


def kept():
    lab = contexts.Context(server="https://lab", key=SecretStr("lab-key"))
    return contexts.Contexts(current="lab", contexts={"lab": lab})


def chosen(server=None, key=None, environment=None):
    found = contexts.choose(server, key, environment or {}, kept())
    return found.server, found.key.get_secret_value()


def test_flags_win_over_environment_over_the_context_over_loopback():
    environment = {"LLMGW_SERVER": "https://env", "LLMGW_KEY": "env-key"}
    assert chosen() == ("https://lab", "lab-key")
    assert chosen(environment=environment) == ("https://env", "env-key")
    assert chosen("https://flag", "flag-key", environment) == ("https://flag", "flag-key")
    nothing = contexts.choose(None, None, {}, contexts.Contexts())
    assert nothing.server == contexts.DEFAULT_SERVER


def test_a_contexts_key_is_never_sent_to_another_server():
    assert chosen("https://other") == ("https://other", "")
    assert chosen(environment={"LLMGW_SERVER": "https://other"}) == ("https://other", "")


def test_contexts_are_kept_for_their_user_only(tmp_path):
    path = contexts.file_path({"XDG_CONFIG_HOME": str(tmp_path)})
    contexts.write(path, kept())
    assert contexts.read(path) == kept()
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert "lab-key" not in repr(kept())


def test_a_broken_context_file_is_told_in_words(tmp_path):
    path = tmp_path / "config.yaml"
    path.write_text("contexts: [")
    with pytest.raises(contexts.ContextFileError, match="mend or delete"):
        contexts.read(path)
    assert contexts.read(tmp_path / "none.yaml") == contexts.Contexts()


@given(st.text())
def test_no_text_from_elsewhere_drives_the_terminal(text):
    assert not any(ord(c) < 32 and c not in "\n\t" for c in plain(text))
    assert "\x9b" not in plain(text)


def test_escape_sequences_go_whole_and_markup_is_no_markup():
    assert plain("a\x1b[31mred\x1b[0m\x1b]52;c;evil\x07b") == "aredb"
    assert cell("[red]x[/]") == "\\[red]x\\[/]"


@pytest.mark.parametrize("text", ["", "3", "0x8xH200", "3x8", "3x8xH 200", "axbxc"])
def test_a_simulated_fleet_that_cannot_be_read_is_refused(text):
    with pytest.raises(DemoError, match="3x8xH200"):
        parse_fleet(text)
    assert parse_fleet("3x8xH200") == (3, "8xH200")


def test_the_demos_catalogs_are_good_catalogs(tmp_path):
    assert load_catalog(catalogs.real(None)).model(catalogs.MODEL)
    assert load_catalog(catalogs.real(tmp_path / "llama-server")).engines[0].install.path
    assert len(load_catalog(catalogs.simulated()).models) == 5
