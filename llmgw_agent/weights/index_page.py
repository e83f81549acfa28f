"""What one page of a package index lists, in either of its two forms.

JSON (PEP 691) and HTML (PEP 503): an index says by Content-Type which one it sent. Whatever is
not a file with a name and an address is passed over; nothing here fetches or decides.
"""

import json
from dataclasses import dataclass
from html.parser import HTMLParser
from typing import Any, Final
from urllib.parse import unquote, urldefrag, urljoin, urlsplit

#: Either form is welcome, JSON more (PEP 691, "Version + Format Selection").
ACCEPT: Final = (
    "application/vnd.pypi.simple.v1+json, application/vnd.pypi.simple.v1+html;q=0.2, "
    "text/html;q=0.1"
)


@dataclass(frozen=True, slots=True, kw_only=True)
class IndexFile:
    """A file of the index; an unknown hash is "", an unknown size 0."""

    filename: str
    url: str
    sha256: str = ""
    size_bytes: int = 0


def read_page(url: str, content_type: str, body: bytes) -> tuple[IndexFile, ...]:
    """Return the files that a page lists.

    Args:
        url: of the page; addresses on it may be relative.
        content_type: as the index named it.
        body: the page.

    Raises:
        ValueError: it is in neither form.
    """
    kind = content_type.partition(";")[0].strip().lower()
    if kind.endswith("json"):
        return _read_json(url, body)
    if kind.endswith("html"):
        return _read_html(url, body.decode("utf-8", errors="replace"))
    raise ValueError(f"it is {kind or 'of no type'}, neither JSON nor HTML")


def _read_json(url: str, body: bytes) -> tuple[IndexFile, ...]:
    page = json.loads(body)
    files = page.get("files") if isinstance(page, dict) else None
    if not isinstance(files, list):
        raise ValueError("its JSON has no list of files")
    read = (_json_file(url, entry) for entry in files if isinstance(entry, dict))
    return tuple(file for file in read if file is not None)


def _json_file(url: str, entry: dict[str, Any]) -> IndexFile | None:
    filename, address = entry.get("filename"), entry.get("url")
    hashes, size = entry.get("hashes"), entry.get("size")
    if not isinstance(filename, str) or not isinstance(address, str):
        return None
    sha256 = hashes.get("sha256") if isinstance(hashes, dict) else None
    whole = _joined(url, address)
    if whole is None:
        return None
    return IndexFile(
        filename=filename,
        url=whole,
        sha256=sha256.lower() if isinstance(sha256, str) else "",
        size_bytes=size if isinstance(size, int) and size > 0 else 0,
    )


def _joined(url: str, address: str) -> str | None:
    try:
        return urljoin(url, address)
    except ValueError:  # such as an address with half a bracket
        return None


def _read_html(url: str, text: str) -> tuple[IndexFile, ...]:
    reader = _Anchors(url)
    reader.feed(text)
    reader.close()
    return tuple(reader.files)


class _Anchors(HTMLParser):
    """Every anchor is a file: its href ends in the name and may carry `#sha256=...`."""

    def __init__(self, url: str) -> None:
        super().__init__()
        self._url = url
        self.files: list[IndexFile] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        """Note an anchor, or what addresses are relative to."""
        href = dict(attrs).get("href")
        whole = _joined(self._url, href) if href else None
        if whole is None:
            return
        if tag == "base":
            self._url = whole
        elif tag == "a":
            address, fragment = urldefrag(whole)
            algorithm, _, value = fragment.partition("=")
            self.files.append(
                IndexFile(
                    filename=unquote(urlsplit(address).path.rpartition("/")[2]),
                    url=address,
                    sha256=value.lower() if algorithm == "sha256" else "",
                )
            )
