"""Typed ids, and the source that makes them.

Pure code imports this file, so nothing here reads a random source: see mint.py for the real one.
"""

from typing import NewType, Protocol

NodeId = NewType("NodeId", str)
ModelName = NewType("ModelName", str)
ReplicaId = NewType("ReplicaId", str)
ShardId = NewType("ShardId", str)
GpuUuid = NewType("GpuUuid", str)
KeyId = NewType("KeyId", str)
MessageId = NewType("MessageId", str)
InstanceId = NewType("InstanceId", str)


class IdSource(Protocol):
    """Makes ids that are never used twice, not even after a restored backup (so: random)."""

    def new(self, kind: str) -> str:
        """Return a fresh id that begins with `kind` and a dash, like `rep-5f0c2a9e41d7b386`."""
        ...
