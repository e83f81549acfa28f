"""Both forms of a page of a package index."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from llmgw_agent.weights.index_page import IndexFile, read_page

URL = "https://index.example.org/simple/tiny/"
JSON = "application/vnd.pypi.simple.v1+json"
DIGEST = "aB" * 32


def test_both_forms_tell_the_same():
    html = f"""<!DOCTYPE html><html><head><meta name="x"></head><body>
        <a>no href</a><a href="../../files/t-1.0%2Bcpu-py3-none-any.whl#sha256={DIGEST}">t</a>"""
    page = {
        "files": [
            {
                "filename": "t-1.0+cpu-py3-none-any.whl",
                "url": "../../files/t-1.0%2Bcpu-py3-none-any.whl",
                "hashes": {"sha256": DIGEST},
            }
        ]
    }
    wanted = IndexFile(
        filename="t-1.0+cpu-py3-none-any.whl",
        url="https://index.example.org/files/t-1.0%2Bcpu-py3-none-any.whl",
        sha256=DIGEST.lower(),
    )
    assert read_page(URL, "text/html; charset=utf-8", html.encode()) == (wanted,)
    assert read_page(URL, JSON, json.dumps(page).encode()) == (wanted,)


def test_addresses_are_relative_to_the_pages_base():
    html = b'<base href="https://files.example.org/"><a href="t.whl#md5=1">t</a>'
    (found,) = read_page(URL, "application/vnd.pypi.simple.v1+html", html)
    assert found == IndexFile(filename="t.whl", url="https://files.example.org/t.whl")


@pytest.mark.parametrize("kind", ["", "text/plain", "application/octet-stream"])
def test_another_type_is_refused(kind):
    with pytest.raises(ValueError, match="neither JSON nor HTML"):
        read_page(URL, kind, b"{}")


@given(st.binary(), st.sampled_from([JSON, "text/html"]))
def test_junk_is_refused_or_lists_nothing_broken(body, kind):
    try:
        files = read_page(URL, kind, body)
    except ValueError:
        return
    assert all(isinstance(file, IndexFile) for file in files)


LEAVES = st.none() | st.integers() | st.text(max_size=5) | st.lists(st.integers(), max_size=1)
ENTRIES = LEAVES | st.fixed_dictionaries(
    {},
    optional={
        "filename": LEAVES,
        "url": LEAVES | st.sampled_from(["http://[", "//[x", "t.whl"]),
        "hashes": LEAVES | st.dictionaries(st.just("sha256"), LEAVES),
        "size": LEAVES,
    },
)


@given(st.lists(ENTRIES, max_size=3))
def test_entries_of_any_shape_are_read_or_passed_over(files):
    good = {"filename": "t.whl", "url": "t.whl"}
    body = json.dumps({"files": [*files, good]}).encode()
    found = read_page(URL, JSON, body)
    assert found[-1] == IndexFile(filename="t.whl", url=URL + "t.whl")
    assert all(file.size_bytes >= 0 for file in found)


def test_an_anchor_that_cannot_be_an_address_hides_no_other():
    html = b'<a href="http://[">x</a><a href="t.whl">t</a>'
    assert read_page(URL, "text/html", html) == (IndexFile(filename="t.whl", url=URL + "t.whl"),)
