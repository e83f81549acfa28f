"""Pools and fabrics: named sets of nodes."""

from collections.abc import Mapping
from typing import Self

from pydantic import Field, model_validator

from llmgw_common.documents.sections import Name, Section


class NodeSelector(Section):
    """Which nodes: by name, or by labels that must all match."""

    names: list[str] = Field(default_factory=list)
    labels: dict[str, str] = Field(default_factory=dict)

    @model_validator(mode="after")
    def _says_something(self) -> Self:
        if bool(self.names) == bool(self.labels):
            raise ValueError("give either names or labels")
        return self

    def matches(self, name: str, labels: Mapping[str, str]) -> bool:
        """Say whether a node of that name and those labels is meant."""
        if self.names:
            return name in self.names
        return all(labels.get(key) == value for key, value in self.labels.items())


class Pool(Section):
    """A named set of nodes that profiles may ask for."""

    name: Name
    nodes: NodeSelector


class Fabric(Section):
    """A set of nodes joined by a fast network over which one replica may span nodes.

    Attributes:
        hcas: pattern of the adapters that belong to it, like "mlx5_*".
    """

    name: Name
    nodes: NodeSelector
    hcas: str = "*"
