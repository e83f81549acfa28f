"""Secrets stay in, traces stay off, times come from clocks that tests move."""

import io
import json
import logging
import subprocess
import sys

import pytest
import structlog

from llmgw_common.api_keys import digest, looks_valid, mint_key
from llmgw_common.clock import FakeClock, at_from_age
from llmgw_common.logs import setup_logging
from llmgw_common.redact import redact
from llmgw_common.tracing import TracingSettings, context_from, current_carrier, setup_tracing

KEY = mint_key()


@pytest.mark.parametrize(
    "text",
    [
        f"key {KEY} leaked",
        "Authorization: Bearer abcdefgh12345678",
        "token hf_abcdefghijklmnopqrst",
        "sk-abcdefghijklmnopqrstuvwx",
        "https://user:pass@host/x",
    ],
)
def test_what_looks_like_a_credential_is_masked(text):
    assert "***" in redact(text)
    for secret in (KEY, "abcdefgh12345678", "hf_abcdefghij", "sk-abcdefghij", "user:pass"):
        assert secret not in redact(text)


def test_a_plain_text_stays_as_it_is():
    text = "tokenizer 12 tokens, rep-5f0c2a9e41d7b386 on n1"
    assert redact(text) == text


def test_log_lines_are_json_with_secrets_masked(monkeypatch):
    out = io.StringIO()
    before = logging.getLogger().handlers
    monkeypatch.setattr(sys, "stderr", out)
    try:
        setup_logging("info", "json")
        structlog.get_logger("x").info("made", api_key="hunter2", text=f"Bearer {KEY}", n=3)
        logging.getLogger("library").warning("its key is %s", KEY)
    finally:
        logging.getLogger().handlers = before
        structlog.reset_defaults()
    lines = [json.loads(line) for line in out.getvalue().splitlines()]
    assert lines[0]["n"] == 3
    assert lines[0]["api_key"] == "***"
    assert "hunter2" not in out.getvalue()
    assert KEY not in out.getvalue()


def test_tracing_that_is_off_starts_nothing_and_carries_nothing():
    end = setup_tracing(TracingSettings(), "test")
    assert current_carrier() is None
    assert context_from(None) is None
    end()


def test_tracing_that_is_off_does_not_even_import_the_sdk():
    program = (
        "import sys, threading; from llmgw_common.tracing import *; "
        "setup_tracing(TracingSettings(), 'x'); "
        "assert not [m for m in sys.modules if m.startswith('opentelemetry.sdk')]; "
        "assert threading.active_count() == 1"
    )
    subprocess.run([sys.executable, "-c", program], check=True)


def test_a_key_has_a_checksum_and_only_its_digest_is_kept():
    assert looks_valid(KEY)
    typo = KEY[:20] + ("A" if KEY[20] != "A" else "B") + KEY[21:]
    assert not looks_valid(typo)
    assert not looks_valid("")
    assert len(digest(KEY)) == 32
    assert digest("\udcff") != digest("x")
    assert mint_key() != mint_key()


def test_a_fake_clock_moves_by_hand_and_the_wall_alone_may_jump():
    clock = FakeClock()
    begun_s, begun_at = clock.monotonic_s(), clock.now()
    clock.advance(5)
    clock.jump_wall(3600)
    assert clock.monotonic_s() - begun_s == 5
    assert (clock.now() - begun_at).total_seconds() == 3605
    shown = at_from_age(clock, clock.monotonic_s() - 60)
    assert shown is not None
    assert (clock.now() - shown).total_seconds() == 60
    assert at_from_age(clock, None) is None


def test_tracing_that_is_on_sends_spans_to_a_receiver_and_carries_the_context():
    """In a process of its own, as the tracer provider is one for a whole process."""
    program = """
import http.server, threading
got = []
class Receiver(http.server.BaseHTTPRequestHandler):
    def do_POST(self):
        got.append((self.path, self.headers["content-type"], self.rfile.read(
            int(self.headers["content-length"]))))
        self.send_response(200); self.end_headers()
    def log_message(self, *_): pass
server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Receiver)
threading.Thread(target=server.serve_forever, daemon=True).start()
from opentelemetry import trace
from llmgw_common.tracing import *
end = setup_tracing(TracingSettings(
    enabled=True, endpoint=f"http://127.0.0.1:{server.server_address[1]}"), "llmgw-test")
with trace.get_tracer("t").start_as_current_span("a-span"):
    carrier = current_carrier()
assert carrier and "traceparent" in carrier
assert context_from(carrier) is not None
end()
(path, kind, body), = got
assert (path, kind) == ("/v1/traces", "application/x-protobuf"), (path, kind)
assert b"a-span" in body and b"llmgw-test" in body
"""
    subprocess.run([sys.executable, "-c", program], check=True, timeout=60)
