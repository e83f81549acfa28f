"""The story of a request, in order: authenticate, peek, route, admit, pick, forward, book.

Free of ASGI and of sockets: an edge (asgi.py) gives a `Call` and a `Client` to answer to. When the
client leaves, the edge cancels `serve`; every exit gives the in-flight count back and books.
"""

from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import datetime
from typing import Final

import structlog

from llmgw_server.gateway.account import Accounts
from llmgw_server.gateway.admission import Admission, not_ready, unknown_model
from llmgw_server.gateway.auth import (
    ANYBODY,
    GATEWAY_ROLES,
    UNAUTHENTICATED,
    ConflictingKeysError,
    KeyRecord,
    KeyRing,
    credential_of,
)
from llmgw_server.gateway.balance import Balance
from llmgw_server.gateway.errors import Refusal, is_anthropic
from llmgw_server.gateway.metrics import GatewayMetrics
from llmgw_server.gateway.peek import decode_body, peek
from llmgw_server.gateway.relay import BusyError, Call, Client, Forwarder, Relay
from llmgw_server.gateway.retry import RetryBudget
from llmgw_server.gateway.table import ModelRoute, RouteTable, Target, TargetKey
from llmgw_server.gateway.upstream import SilentError, UpstreamError

log = structlog.get_logger(__name__)

#: Tries of one request, the first included: once elsewhere, never after content.
TRIES_MAX: Final = 2


@dataclass(slots=True, kw_only=True)
class Core:
    """The parts that a request passes; `table` and `keys` are swapped whole."""

    admission: Admission
    balance: Balance
    forwarder: Forwarder
    accounts: Accounts
    metrics: GatewayMetrics
    needs_key: bool
    now: Callable[[], datetime]
    now_s: Callable[[], float]
    table: RouteTable = field(default_factory=RouteTable)
    keys: KeyRing = field(default_factory=lambda: KeyRing({}))
    retry_budget: RetryBudget = field(default_factory=RetryBudget)

    # --- 1. authenticate -------------------------------------------------------------------------

    def authenticate(self, authorization: list[str], api_key: list[str]) -> KeyRecord:
        """Return the key of a request.

        Raises:
            Refusal: 401 with one text for every kind of no; 400 for two different keys.
        """
        if not self.needs_key:
            return ANYBODY
        try:
            credential = credential_of(authorization, api_key)
        except ConflictingKeysError as error:
            raise Refusal(
                status=400,
                code="conflicting_keys",
                message="Authorization and x-api-key hold different keys; send one.",
            ) from error
        record = self.keys.find(credential, self.now()) if credential else None
        if record is None or record.role not in GATEWAY_ROLES:
            raise Refusal(status=401, code="invalid_api_key", message=UNAUTHENTICATED)
        return record

    # --- the story -------------------------------------------------------------------------------

    async def serve(self, call: Call, key: KeyRecord, client: Client) -> None:
        """Serve one authenticated request to its end.

        Raises:
            Refusal: it cannot be served, and nothing was sent yet.
        """
        begun_s = self.now_s()
        encoding = ",".join(call.values(b"content-encoding"))
        body = decode_body(call.body, encoding, call.limit_bytes)
        found = peek(body)  # 2
        route = self.table.find(found.model)  # 3
        if route is None:
            raise unknown_model(found.model)
        if not key.may_call(found.model, route.name):
            raise Refusal(
                status=403,
                code="model_not_allowed",
                message=f"This key may not call {route.name}.",
                param="model",
            )
        relay = Relay(call, key, found, route)
        self.metrics.in_flight.labels(route.name).inc()
        try:
            relay.route = await self._admit(route)  # 4
            await self._forward(relay, body, client)  # 5, 6
        except Refusal as refusal:
            relay.outcome = refusal.code
            raise
        finally:
            self.metrics.in_flight.labels(route.name).dec()
            self._book(relay, begun_s, len(body))  # 7

    async def _admit(self, route: ModelRoute) -> ModelRoute:
        if route.targets:
            return route
        waits_from_s = self.now_s()
        try:
            return await self.admission.wait(route, lambda: self.table)
        finally:
            self.metrics.queue.labels(route.name).observe(self.now_s() - waits_from_s)

    async def _forward(self, relay: Relay, body: bytes, client: Client) -> None:
        tried: set[TargetKey] = set()
        refusal: Refusal | None = None
        self.retry_budget.request(self.now_s())
        while True:
            # Looked up again for each try: the table may have been swapped meanwhile.
            targets = (self.table.find(relay.route.name) or relay.route).targets
            target = self.balance.pick(targets, tried)
            if target is None:
                raise refusal or not_ready(relay.route, "Its replicas left meanwhile.")
            if tried:
                self.retry_budget.retry(self.now_s())
                self.metrics.retries.labels(relay.route.name).inc()
            tried.add(target.key)
            relay.target = target
            is_last = not self._may_try_another(targets, tried)
            refusal = await self._try(relay, target, body, client, is_last=is_last)
            if refusal is None:
                return
            if is_last:
                raise refusal

    def _may_try_another(self, targets: tuple[Target, ...], tried: set[TargetKey]) -> bool:
        return (
            len(tried) < TRIES_MAX
            and any(target.key not in tried for target in targets)
            and self.retry_budget.allows(self.now_s())
        )

    async def _try(
        self, relay: Relay, target: Target, body: bytes, client: Client, *, is_last: bool
    ) -> Refusal | None:
        """Send it to one replica; return why it may be tried elsewhere, None when it is over."""
        has_failed = False  # a client that leaves says nothing about the replica
        self.balance.begin(target)
        try:
            has_failed = not await self.forwarder.run(relay, target, body, client, is_last=is_last)
        except UpstreamError as error:
            has_failed = True
            if isinstance(error, BusyError):
                return _busy()
            log.warning("replica failed a request", replica_id=target.replica_id, error=str(error))
            if relay.has_answered:
                raise
            if isinstance(error, SilentError):
                raise _silent(relay.route.name, str(error)) from error
            return _broken(relay.route.name)
        finally:
            self.balance.end(target, has_failed=has_failed)
        return None

    # --- 7. book ---------------------------------------------------------------------------------

    def _book(self, relay: Relay, begun_s: float, body_bytes: int) -> None:
        model = relay.route.name
        tokens, is_estimated = _tokens(relay, body_bytes)
        self.accounts.book(
            model=model,
            key_id=relay.key.key_id,
            replica_id=relay.target.replica_id if relay.target else "",
            outcome=relay.outcome,
            tokens=tokens,
            is_estimated=is_estimated,
        )
        self.metrics.requests.labels(model, relay.outcome).inc()
        self.metrics.tokens.labels(model, "prompt").inc(tokens[0])
        self.metrics.tokens.labels(model, "completion").inc(tokens[1])
        self.metrics.duration.labels(model).observe(self.now_s() - begun_s)


def _tokens(relay: Relay, body_bytes: int) -> tuple[tuple[int, int], bool]:
    """Return the tokens of prompt and answer, and whether they are estimated.

    Estimated is what broke off before the engine told: four bytes of prompt a token, one content
    event a token, the usual rules of thumb. Anthropic's API tells some usage at the very start,
    which is not yet the answer's.
    """
    usage = relay.tail.usage()
    is_early = is_anthropic(relay.call.path) and relay.outcome in ("client_gone", "cut")
    if usage and not (relay.is_stream and is_early):
        return (usage.prompt_tokens, usage.completion_tokens), False
    if not relay.is_stream or not relay.tail.events:
        return (0, 0), False
    prompt_tokens = usage.prompt_tokens if usage else body_bytes // 4
    return (prompt_tokens, relay.tail.events), True


def _busy() -> Refusal:
    return Refusal(
        status=503,
        code="overloaded",
        message="Every replica that was tried is busy.",
        retry_after_s=1,
    )


def _broken(model: str) -> Refusal:
    return Refusal(
        status=502,
        code="replica_failed",
        message=f"The replicas of {model} that were tried did not answer; try again.",
        retry_after_s=1,
    )


def _silent(model: str, why: str) -> Refusal:
    return Refusal(
        status=504,
        code="replica_timed_out",
        message=f"The replica of {model} gave {why} (limits of the model).",
    )
