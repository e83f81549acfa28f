"""Catalog documents: read whole, all errors at once, each with its place."""

import contextlib
import json
import time

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from llmgw_common.document_errors import InvalidDocumentError
from llmgw_common.documents.catalog import Catalog, dump_catalog, load_catalog
from llmgw_common.documents.diff import diff_catalogs
from llmgw_common.documents.source import (
    FileSource,
    HubSource,
    NoSource,
    ObjectSource,
    PypiSource,
    parse_source,
)

GOOD = """\
engines:
  - name: vllm
    kind: vllm
    version: "0.33.0"
    install: {pip: ["vllm==0.33.0"], python: "3.12"}
pools:
  - name: h200
    nodes: {labels: {gpu: h200}}
fabrics:
  - name: ib0
    nodes: {names: [n1, n2]}
    hcas: "mlx5_*"
models:
  - name: llama-3.3-70b
    aliases: [gpt-4o]
    source: hf://meta-llama/Llama-3.3-70B-Instruct@main
    priority: 100
    scaling: {min: 1, max: 4, target_in_flight: 32, idle_timeout: 15m, scale_down_delay: 5m}
    limits: {max_queue: 200, max_wait: 120s, first_byte: 60s, between_bytes: 30s}
    profiles:
      - name: tp4
        engine: vllm
        pool: h200
        gpus: 4
        gpu_memory: 80GiB
        args: {max-model-len: 32768, enforce-eager: true}
        startup_timeout: 20m
      - {name: 2x8, engine: vllm, shards: 2, gpus: 8, fabric: any, weight: 1.6}
"""

FIVE_MISTAKES = """\
engines:
  - name: sim
    kind: simulated
    versoin: "1"
models:
  - name: a
    priority: high
    profiles:
      - {name: p, engine: simm}
  - name: a
    scaling: {idle_timeout: 15 minutes}
    profiles:
      - {name: p, engine: sim}
"""


def errors_of(text, file="catalog.yaml"):
    with pytest.raises(InvalidDocumentError) as caught:
        load_catalog(text, file)
    return caught.value.errors


def with_model(extra: str) -> str:
    return (
        "engines: [{name: e, kind: simulated}]\nmodels:\n"
        f"  - name: m\n    profiles: [{{name: p, engine: e}}]\n{extra}"
    )


def test_the_catalog_of_the_documentation_is_read_with_its_units():
    catalog = load_catalog(GOOD)
    model = catalog.model("gpt-4o")
    assert model is catalog.model("llama-3.3-70b")
    assert model.scaling.idle_timeout == 900.0
    profile = model.profile("tp4")
    assert profile.gpu_memory == 80 << 30
    assert profile.startup_timeout == 1200.0
    assert catalog.pool_has("h200", "any", {"gpu": "h200"})
    assert not catalog.pool_has("h200", "any", {})
    assert not catalog.pool_has("none", "any", {})


def test_five_different_mistakes_give_five_errors_with_their_lines():
    found = [(e.line, e.path, e.message, e.hint) for e in errors_of(FIVE_MISTAKES)]
    assert [(line, path) for line, path, _, _ in found] == [
        (4, "engines[0].versoin"),
        (7, "models[0].priority"),
        (9, "models[0].profiles[0].engine"),
        (10, "models[1].name"),
        (11, "models[1].scaling.idle_timeout"),
    ]
    assert found[0][2:] == ("unknown key 'versoin'", "did you mean 'version'?")
    assert "valid integer" in found[1][2]
    assert found[2][2:] == ("unknown engine 'simm'", "did you mean 'sim'?")
    assert found[3][2] == "duplicate model or alias 'a', first on line 6"
    assert "'15 minutes' is no duration" in found[4][2]


def test_an_error_is_one_line_with_file_line_path_and_hint():
    first = str(errors_of(FIVE_MISTAKES)[0])
    assert first == (
        "catalog.yaml:4: engines[0].versoin: unknown key 'versoin' (did you mean 'version'?)"
    )


def test_json_is_a_catalog_too():
    assert load_catalog(json.dumps(yaml.safe_load(GOOD))) == load_catalog(GOOD)


def test_several_documents_are_one_catalog():
    head, models = GOOD.split("models:\n")
    assert load_catalog(head + "---\nmodels:\n" + models) == load_catalog(GOOD)


def test_an_empty_text_is_an_empty_catalog():
    assert load_catalog("") == load_catalog("# nothing\n") == Catalog()


@pytest.mark.parametrize(
    ("text", "path", "words"),
    [
        ("modles: []", "modles", "unknown key"),
        ("models: {}", "models", "must be a list"),
        ("- a", "", "a catalog is a mapping"),
        ("models: [3]", "models[0]", "valid dictionary"),
        ("a: b: c", "", "mapping values"),
        ("models:\n  - name: m\n    name: n\n", "", "stands twice"),
        (with_model("    aliases: [x, x]\n"), "models[0].aliases[1]", "duplicate"),
        (with_model("    fallbacks: [nobody]\n"), "models[0].fallbacks[0]", "unknown model"),
        (with_model("    source: ftp://x\n"), "models[0].source", "is no source"),
        (with_model("    source: file:///a/../b\n"), "models[0].source", "'..'"),
        (with_model("    source: https://u:p@h/x\n"), "models[0].source", "credentials"),
        (with_model("    scaling: {min: 3, max: 2}\n"), "models[0].scaling", "below min"),
        (with_model("    scaling: {min: -1}\n"), "models[0].scaling.min", "greater"),
        (with_model("    limits: {max_wait: .nan}\n"), "models[0].limits.max_wait", "not endless"),
        (with_model("    name2: x\n"), "models[0].name2", "unknown key"),
        (
            with_model("    trust_remote_code: true\n    source: hf://a/b@main\n"),
            "models[0]",
            "pinned commit",
        ),
        ("engines: [{name: e, kind: command}]", "engines[0]", "command"),
        ("engines: [{name: e, kind: vlm}]", "engines[0].kind", "vllm"),
        (
            "engines: [{name: e, kind: vllm, install: {pip: ['vllm>=1']}}]",
            "engines[0].install",
            "not exact",
        ),
        (
            "engines: [{name: e, kind: vllm, install: {container: 'x:latest'}}]",
            "engines[0].install",
            "by digest",
        ),
        ("pools: [{name: p, nodes: {}}]", "pools[0].nodes", "names or labels"),
        ("engines: [{name: '../x', kind: vllm}]", "engines[0].name", "match pattern"),
        ("models: [{name: m}]", "models[0].profiles", "is missing"),
    ],
)
def test_a_mistake_is_told_with_its_place(text, path, words):
    assert any(e.path == path and words in e.message for e in errors_of(text)), errors_of(text)


def test_an_alias_may_not_be_another_models_name():
    text = with_model("    aliases: [other]\n") + (
        "  - name: other\n    profiles: [{name: p, engine: e}]\n"
    )
    (error,) = errors_of(text)
    assert "duplicate model or alias 'other'" in error.message


@pytest.mark.parametrize(
    "text",
    [
        "a: &a [x,x,x,x,x,x,x,x,x]\nb: &b [*a,*a,*a,*a,*a,*a,*a,*a,*a]\n"
        "c: &c [*b,*b,*b,*b,*b,*b,*b,*b,*b]\nd: &d [*c,*c,*c,*c,*c,*c,*c,*c,*c]\n"
        "e: [*d,*d,*d,*d,*d,*d,*d,*d,*d]\n",
        "models: " + "[" * 200 + "]" * 200,
        "models: [" + "a," * 1_900_000 + "a]",
        "x" * (5 << 20),
        "models: !!python/object/apply:os.system ['true']",
        "models: [1" + "0" * 400 + "]",
    ],
)
def test_hostile_yaml_is_refused_quickly_and_in_words(text):
    begun = time.process_time()
    assert errors_of(text)
    assert time.process_time() - begun < 1.0


@given(st.text(max_size=200) | st.binary(max_size=200).map(lambda b: b.decode("latin-1")))
def test_whatever_the_text_is_the_outcome_is_a_catalog_or_its_errors(text):
    with contextlib.suppress(InvalidDocumentError):
        load_catalog(text)


def test_a_dumped_catalog_loads_to_the_same_catalog():
    catalog = load_catalog(GOOD)
    assert load_catalog(dump_catalog(catalog)) == catalog


def test_a_difference_is_told_field_by_field_and_order_means_nothing():
    old = load_catalog(GOOD)
    assert diff_catalogs(old, load_catalog(dump_catalog(old))) == []
    new = load_catalog(
        GOOD.replace("min: 1, max: 4", "min: 2, max: 4").replace("gpus: 4", "gpus: 8")
    )
    changes = {(c.path, c.before, c.after) for c in diff_catalogs(old, new)}
    assert changes == {
        ("models.llama-3.3-70b.scaling.min", "1", "2"),
        ("models.llama-3.3-70b.profiles.tp4.gpus", "4", "8"),
    }
    added = diff_catalogs(Catalog(), old)
    assert ("models.llama-3.3-70b", None, "present") in {(c.path, c.before, c.after) for c in added}


@pytest.mark.parametrize(
    ("before", "after", "is_same"),
    [
        ("weight: 1.6", "weight: 2", True),
        ("startup_timeout: 20m", "startup_timeout: 30m", True),
        ("        pool: h200\n", "", True),
        ("max-model-len: 32768", "max-model-len: 1024", False),
        ("gpus: 4", "gpus: 8", False),
        ('version: "0.33.0"', 'version: "0.33.1"', False),
        ("Instruct@main", "Instruct@v2", False),
    ],
)
def test_a_fingerprint_changes_with_what_runs_and_with_nothing_else(before, after, is_same):
    prints = []
    for text in (GOOD, GOOD.replace(before, after)):
        catalog = load_catalog(text)
        model = catalog.models[0]
        profile = model.profiles[0]
        engine = catalog.engine(profile.engine)
        assert engine is not None
        prints.append(profile.fingerprint(engine, model))
    assert (prints[0] == prints[1]) is is_same


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("hf://org/name@abc", HubSource("org/name", "abc")),
        ("hf://org/name", HubSource("org/name")),
        ("file:///models/a%20b.gguf", FileSource("/models/a b.gguf")),
        (f"file:///m.gguf#sha256={'AB' * 32}", FileSource("/m.gguf", "ab" * 32)),
        ("pypi:pkg==1.2/dir/w.gguf", PypiSource("pkg", "1.2", "dir/w.gguf")),
        ("s3://bucket/prefix", ObjectSource("s3", "s3://bucket/prefix")),
        ("none:", NoSource()),
    ],
)
def test_a_source_is_one_of_the_known_forms(text, found):
    assert parse_source(text) == found


@pytest.mark.parametrize(
    "text",
    [
        "",
        "x",
        "file:relative",
        "file://host/x",
        "file:///x#sha256=short",
        "file:///x#md5=" + "0" * 64,
        "file:///x?y",
        "pypi:pkg/x",
        "pypi:p==1/../x",
        "hf://x",
        "s3:///x",
    ],
)
def test_anything_else_is_no_source(text):
    with pytest.raises(ValueError, match=r"."):
        parse_source(text)
