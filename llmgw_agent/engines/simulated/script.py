"""What a simulated engine can be told to do."""

import argparse
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True, kw_only=True)
class Script:
    """One engine's behaviour; times in seconds.

    Attributes:
        load_s: time from launch until it is healthy.
        first_token_s: time to the first token of an answer.
        tokens_per_s: after that.
        tokens: length of an answer; a request may ask for fewer.
        slots: requests served at once; the others wait.
        fail_load: text to print before it exits with code 1 while loading.
        exit_after_requests: exits with `exit_code` after so many answers; 0 is never.
        exit_after_s: exits so long after it became healthy; 0 is never.
        hang_after_requests: stays open and healthy but sends no more tokens; 0 is never.
        ignore_sigterm: only SIGKILL ends it.
    """

    host: str = "127.0.0.1"
    port: int = 0
    model: str = "simulated"
    api_key: str = ""
    load_s: float = 0.2
    first_token_s: float = 0.02
    tokens_per_s: float = 200.0
    tokens: int = 16
    slots: int = 16
    fail_load: str = ""
    exit_after_requests: int = 0
    exit_after_s: float = 0.0
    exit_code: int = 1
    hang_after_requests: int = 0
    ignore_sigterm: bool = False


def parse(argv: list[str]) -> Script:
    """Return the script that a command line describes."""
    parser = argparse.ArgumentParser(prog="llmgw-simulated-engine")
    parser.add_argument("--host", default=Script.host)
    parser.add_argument("--port", type=int, required=True)
    parser.add_argument("--model", default=Script.model)
    parser.add_argument("--api-key-file", type=Path)
    parser.add_argument("--load-s", type=float, default=Script.load_s)
    parser.add_argument("--first-token-s", type=float, default=Script.first_token_s)
    parser.add_argument("--tokens-per-s", type=float, default=Script.tokens_per_s)
    parser.add_argument("--tokens", type=int, default=Script.tokens)
    parser.add_argument("--slots", type=int, default=Script.slots)
    parser.add_argument("--fail-load", default="")
    parser.add_argument("--exit-after-requests", type=int, default=0)
    parser.add_argument("--exit-after-s", type=float, default=0.0)
    parser.add_argument("--exit-code", type=int, default=1)
    parser.add_argument("--hang-after-requests", type=int, default=0)
    parser.add_argument("--ignore-sigterm", action="store_true")
    options = vars(parser.parse_args(argv))
    key_file = options.pop("api_key_file")
    key = key_file.read_text(encoding="utf-8").strip() if key_file else ""
    return Script(api_key=key, **options)
