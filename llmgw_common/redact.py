"""Secrets never leave in a log, error or event.

Two nets: a field whose name says that it is secret is masked whole, and texts are searched for what
looks like a credential. The first net is the one to rely on; the second catches what slips through.
"""

import re
from collections.abc import MutableMapping
from typing import Any, Final

MASK: Final = "***"

_SECRET_NAME: Final = re.compile(
    r"(^|_)(token|secret|password|passwd|authorization|credential|api_?key|access_key|cookie)s?$",
    re.IGNORECASE,
)
_SECRET_TEXT: Final = re.compile(
    r"llmgw-[A-Za-z0-9_-]{20,}"
    r"|(?<=[Bb]earer )[A-Za-z0-9._~+/=-]{8,}"
    r"|\b(?:hf_|sk-)[A-Za-z0-9_-]{16,}"
    r"|(?<=://)[^/\s:@]+:[^/\s@]+(?=@)"
)


def redact(text: str) -> str:
    """Return `text` with everything masked that looks like a credential."""
    return _SECRET_TEXT.sub(MASK, text)


def is_secret_name(name: str) -> bool:
    """Say whether a field of that name holds a secret."""
    return _SECRET_NAME.search(name) is not None


def redact_event(
    logger: object, method: str, event: MutableMapping[str, Any]
) -> MutableMapping[str, Any]:
    """Mask one structured log event; a structlog processor."""
    for key, value in event.items():
        if is_secret_name(key):
            event[key] = MASK
        elif isinstance(value, str):
            event[key] = redact(value)
    return event
