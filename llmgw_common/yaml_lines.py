"""YAML (and JSON, which is YAML) read safely, with the line of every key.

Rule 1: only plain data is built: no tags, no code.
Rule 2: size, depth and number of nodes are limited, and an alias counts as often as it is used, so
that no small file becomes a large one.
Rule 3: a key that stands twice in one mapping is an error, not a silent winner.
"""

from dataclasses import dataclass, field
from typing import Any, Final

import yaml

SIZE_BYTES_MAX: Final = 4 << 20
DEPTH_MAX: Final = 50
NODES_MAX: Final = 10_000

#: A path into a document: keys and indices.
Path = tuple[str | int, ...]


class YamlError(Exception):
    """The text is no YAML that is read here; `line` is where (1 is the first), 0 if unknown."""

    def __init__(self, text: str, line: int = 0) -> None:
        super().__init__(text)
        self.line = line


@dataclass(slots=True)
class LinedDocument:
    """Plain data and the line on which each of its parts begins (the key's, for a mapping)."""

    data: Any
    lines: dict[Path, int] = field(default_factory=dict)

    def line_of(self, path: Path) -> int:
        """Return the line of `path`, or of the nearest part above it; 0 if there is none."""
        for length in range(len(path), -1, -1):
            if path[:length] in self.lines:
                return self.lines[path[:length]]
        return 0


def path_text(path: Path) -> str:
    """Return a path as people write it: models[1].scaling.min."""
    text = ""
    for part in path:
        text += f"[{part}]" if isinstance(part, int) else f".{part}" if text else part
    return text


def read_yaml(text: str) -> list[LinedDocument]:
    """Return the documents of `text`; an empty text has none.

    Raises:
        YamlError: too large, too deep, no YAML, or a key that stands twice.
    """
    if len(text.encode()) > SIZE_BYTES_MAX:
        raise YamlError(f"the text is larger than {SIZE_BYTES_MAX >> 20} MiB")
    try:
        _count(text)
        nodes = list(yaml.compose_all(text, Loader=yaml.CSafeLoader))
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark
        raise YamlError(str(error.problem), mark.line + 1 if mark else 0) from error
    except yaml.YAMLError as error:
        raise YamlError("the text is no YAML") from error
    documents = []
    for node in nodes:
        if node is not None:
            document = LinedDocument(None)
            reader = _Reader(document.lines)
            document.data = reader.read(node, (), 0)
            documents.append(document)
    return documents


def _count(text: str) -> None:
    """Refuse too many values before any tree is built: events are cheap, nodes are not."""
    for count, event in enumerate(yaml.parse(text, Loader=yaml.CSafeLoader)):
        if count > 3 * NODES_MAX:
            mark = event.start_mark
            raise YamlError(f"more than {NODES_MAX} values", mark.line + 1 if mark else 0)


class _Reader:
    def __init__(self, lines: dict[Path, int]) -> None:
        self._lines = lines
        self._nodes = 0
        self._plain = yaml.constructor.SafeConstructor()

    def read(self, node: yaml.Node, path: Path, depth: int) -> Any:  # noqa: ANN401 - plain data
        line = node.start_mark.line + 1
        self._nodes += 1
        if self._nodes > NODES_MAX:
            raise YamlError(f"more than {NODES_MAX} values (aliases count each time)", line)
        if depth > DEPTH_MAX:
            raise YamlError(f"nested deeper than {DEPTH_MAX}", line)
        self._lines.setdefault(path, line)
        if isinstance(node, yaml.MappingNode):
            return self._mapping(node, path, depth)
        if isinstance(node, yaml.SequenceNode):
            return [self.read(item, (*path, i), depth + 1) for i, item in enumerate(node.value)]
        return self._scalar(node, line)

    def _mapping(self, node: yaml.MappingNode, path: Path, depth: int) -> dict[str, Any]:
        found: dict[str, Any] = {}
        for key_node, value_node in node.value:
            line = key_node.start_mark.line + 1
            if not isinstance(key_node, yaml.ScalarNode):
                raise YamlError("a key must be a plain word", line)
            key = str(key_node.value)
            if key in found:
                raise YamlError(f"the key {key!r} stands twice here", line)
            self._lines[(*path, key)] = line
            found[key] = self.read(value_node, (*path, key), depth + 1)
        return found

    def _scalar(self, node: yaml.Node, line: int) -> Any:  # noqa: ANN401 - plain data
        try:
            value = self._plain.construct_object(node)
        except (yaml.YAMLError, ValueError) as error:
            raise YamlError("a value that is not plain data", line) from error
        if value is None or isinstance(value, str | int | float | bool):
            return value
        return str(node.value)  # a date stays the text that was written
