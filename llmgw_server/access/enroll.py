"""How a machine becomes a node: join tokens, traded once for a node credential.

Rule 1: identity is the credential, never a host name; only digests are kept.
Rule 2: a token works `uses` times until it expires; the labels it carries stick to the node.
Rule 3: a node that joins again under its own name, while it is not connected, keeps its id and gets
a new credential; the old one stops working. While it is connected, the name is taken.
"""

import hmac
from asyncio import Lock
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Final, Protocol

from llmgw_common.api_keys import digest
from llmgw_common.clock import Clock
from llmgw_common.errors import LlmgwError
from llmgw_common.ids import IdSource, NodeId
from llmgw_common.mint import new_secret
from llmgw_server.channel.endpoint import Admission

_TOKEN_PREFIX: Final = "llmgw-join-"  # noqa: S105 - what all tokens begin with
_NODE_PREFIX: Final = "llmgw-node-"


@dataclass(frozen=True, slots=True, kw_only=True)
class EnrolledNode:
    """A node as it is kept."""

    node_id: NodeId
    name: str
    addresses: tuple[str, ...]
    labels: dict[str, str]
    is_cordoned: bool
    enrolled_at: datetime
    digest: bytes = field(repr=False)


@dataclass(frozen=True, slots=True, kw_only=True)
class JoinToken:
    """A join token as it is kept."""

    token_id: str
    digest: bytes = field(repr=False)
    uses_left: int
    expires_at: datetime
    labels: dict[str, str]


class EnrollmentStore(Protocol):
    """Where nodes and tokens are kept."""

    async def nodes(self) -> list[EnrolledNode]:
        """Return every node."""
        ...

    async def put_node(self, node: EnrolledNode) -> None:
        """Keep a node, new or changed, durably."""
        ...

    async def remove_node(self, node_id: NodeId) -> None:
        """Forget a node."""
        ...

    async def put_token(self, token: JoinToken) -> None:
        """Keep a token."""
        ...

    async def use_token(self, token_digest: bytes, now: datetime) -> JoinToken | None:
        """Take one use of a token that is good at `now`; None if there is no such one."""
        ...


class Enrollment:
    """Nodes and join tokens; the door of the agents."""

    def __init__(self, store: EnrollmentStore, clock: Clock, ids: IdSource) -> None:
        self._store = store
        self._clock = clock
        self._ids = ids
        self._nodes: dict[NodeId, EnrolledNode] = {}
        self._by_digest: dict[bytes, NodeId] = {}
        self._bootstrap_digest: bytes | None = None
        #: One join at a time: two under one name must not both find it free.
        self._joining = Lock()
        #: Set by the composition root: whether a node is connected, and who hears of changes.
        self.is_connected: Callable[[NodeId], bool] = lambda _: False
        self.on_enrolled: Callable[[EnrolledNode], None] = lambda _: None

    async def load(self, bootstrap_token: str | None) -> list[EnrolledNode]:
        """Read the nodes; `bootstrap_token` is a token that is good while it is configured."""
        self._nodes = {node.node_id: node for node in await self._store.nodes()}
        self._by_digest = {node.digest: node.node_id for node in self._nodes.values()}
        self._bootstrap_digest = digest(bootstrap_token) if bootstrap_token else None
        return list(self._nodes.values())

    async def create_token(
        self, *, ttl_s: float, uses: int, labels: dict[str, str]
    ) -> tuple[JoinToken, str]:
        """Make a token; return it and its text, which is kept nowhere."""
        text = _TOKEN_PREFIX + new_secret()
        token = JoinToken(
            token_id=self._ids.new("jtk"),
            digest=digest(text),
            uses_left=uses,
            expires_at=self._clock.now() + timedelta(seconds=ttl_s),
            labels=labels,
        )
        await self._store.put_token(token)
        return token, text

    async def join(
        self, *, token: str, node_name: str, instance_id: str, addresses: tuple[str, ...]
    ) -> Admission:
        """Trade a token for a node credential (channel.endpoint.NodeDoor)."""
        async with self._joining:
            return await self._join(token, node_name, addresses)

    async def _join(self, token: str, node_name: str, addresses: tuple[str, ...]) -> Admission:
        known = next((n for n in self._nodes.values() if n.name == node_name), None)
        if known and self.is_connected(known.node_id):
            text = f"a node named {node_name} is connected; set another node_name in agent.yaml"
            raise LlmgwError("conflict", text)
        labels = await self._take_token(token)
        secret = _NODE_PREFIX + new_secret()
        node = EnrolledNode(
            node_id=known.node_id if known else NodeId(self._ids.new("node")),
            name=node_name,
            addresses=addresses,
            labels=labels,
            is_cordoned=known.is_cordoned if known else False,
            enrolled_at=self._clock.now(),
            digest=digest(secret),
        )
        await self._put(node)
        return Admission(node_id=node.node_id, node_name=node.name, credential=secret)

    async def authenticate(self, credential: str) -> NodeId | None:
        """Return the node of a credential (channel.endpoint.NodeDoor)."""
        sought = digest(credential)
        node = self._nodes.get(self._by_digest.get(sought, NodeId("")))
        is_same = hmac.compare_digest(sought, node.digest if node else bytes(32))
        return node.node_id if node and is_same else None

    async def cordon(self, node_id: NodeId, *, is_cordoned: bool) -> None:
        """Keep whether a node takes new work."""
        node = self._nodes[node_id]
        await self._put(
            EnrolledNode(
                node_id=node.node_id,
                name=node.name,
                addresses=node.addresses,
                labels=node.labels,
                is_cordoned=is_cordoned,
                enrolled_at=node.enrolled_at,
                digest=node.digest,
            )
        )

    async def remove(self, node_id: NodeId) -> None:
        """Forget a node: its credential stops working."""
        await self._store.remove_node(node_id)
        node = self._nodes.pop(node_id, None)
        if node:
            self._by_digest.pop(node.digest, None)

    async def _take_token(self, token: str) -> dict[str, str]:
        sought = digest(token)
        if self._bootstrap_digest and hmac.compare_digest(sought, self._bootstrap_digest):
            return {}
        found = await self._store.use_token(sought, self._clock.now())
        if found is None:
            text = "the join token is unknown, used up or expired; make one: llmgw join-token"
            raise LlmgwError("unauthenticated", text)
        return found.labels

    async def _put(self, node: EnrolledNode) -> None:
        await self._store.put_node(node)
        before = self._nodes.get(node.node_id)
        if before:
            self._by_digest.pop(before.digest, None)
        self._nodes[node.node_id] = node
        self._by_digest[node.digest] = node.node_id
        self.on_enrolled(node)
