"""Agent and server over TLS: by a CA, by a pinned fingerprint, and never to anybody else."""

import hashlib
import ssl

import pytest
import trustme
import yaml

from llmgw_common.api.models import JoinTokenRequest
from tests.harness import Fleet, Program, eventually


@pytest.fixture
def authority():
    return trustme.CA()


@pytest.fixture
def fleet(tmp_path, authority, monkeypatch):
    certificate = authority.issue_cert("127.0.0.1")
    key_file, cert_file, ca_file = (tmp_path / n for n in ("key.pem", "cert.pem", "ca.pem"))
    certificate.private_key_pem.write_to_path(key_file)
    for blob in certificate.cert_chain_pems:
        blob.write_to_path(cert_file, append=True)
    authority.cert_pem.write_to_path(ca_file)
    monkeypatch.setenv("SSL_CERT_FILE", str(ca_file))  # for this test's own clients
    found = Fleet(tmp_path, tls={"certificate_file": str(cert_file), "key_file": str(key_file)})
    try:
        found.start_server()
        yield found
    finally:
        found.close()


def fingerprint(fleet):
    pem = (fleet.folder / "cert.pem").read_text().split("-----END")[0]
    der = ssl.PEM_cert_to_DER_cert(pem + "-----END CERTIFICATE-----\n")
    return hashlib.sha256(der).hexdigest()


def test_an_agent_that_knows_the_ca_joins(fleet):
    fleet.start_agent("n1", tls={"ca_file": str(fleet.folder / "ca.pem")})


def test_an_agent_with_the_pinned_fingerprint_joins_without_a_ca(fleet, monkeypatch):
    with fleet.api() as api:
        token = api.create_join_token(JoinTokenRequest()).text
    monkeypatch.delenv("SSL_CERT_FILE")
    pinned = fingerprint(fleet).upper()
    pinned = ":".join(pinned[i : i + 2] for i in range(0, 64, 2))
    agent = start_bare(fleet, {"fingerprint": pinned}, token)
    try:
        eventually(lambda: '"event": "connected"' in agent.text(), what=str(agent.log))
    finally:
        agent.kill()


@pytest.mark.parametrize(
    ("tls", "words"),
    [
        ({"fingerprint": "ab" * 32}, "not the pinned one"),
        ({}, "certificate verify failed"),
    ],
)
def test_an_agent_sends_nothing_to_a_server_that_it_does_not_know(fleet, monkeypatch, tls, words):
    monkeypatch.delenv("SSL_CERT_FILE")
    agent = start_bare(fleet, tls)
    try:
        eventually(lambda: words in agent.text(), what=f"the refusal; {agent.log}")
        assert "joined" not in agent.text()
        assert not (fleet.folder / "bare" / "credential.json").exists()
    finally:
        agent.kill()


def start_bare(fleet, tls, text="a-token"):
    """An agent that nobody waits for."""
    token = fleet.folder / "bare.token"
    token.write_text(text)
    config = fleet.folder / "bare.yaml"
    settings = {
        "server": fleet.url,
        "node_name": "bare",
        "join_token_file": str(token),
        "data_dir": str(fleet.folder / "bare"),
        "inventory": {"nvml": "off"},
        "tls": tls,
    }
    config.write_text(yaml.safe_dump(settings))
    agent = Program("llmgw_agent", config, fleet.folder / "bare.log")
    agent.start()
    return agent
