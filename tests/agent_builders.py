"""Commands and statuses of shards with sensible defaults."""

from typing import Any

from pydantic import SecretStr

from llmgw_agent.supervisor.shard import ShardStatus
from llmgw_common.protocol.messages import EngineSpec, StartShard, StopShard, Term
from llmgw_common.states import ShardState

TERM = Term(counter=1, leader_id="L")


def make_start(shard: str = "shd-1", **fields: Any) -> StartShard:
    defaults: dict[str, Any] = {
        "id": "cmd-1",
        "session": 1,
        "term": TERM,
        "shard_id": shard,
        "replica_id": "rep-1",
        "epoch": 1,
        "model": "m",
        "served_model": "m",
        "source": "none:",
        "profile": "p",
        "fingerprint": "f",
        "engine": EngineSpec(name="sim", kind="simulated", version="1"),
        "port": 20000,
        "startup_timeout_s": 20.0,
    }
    return StartShard(**(defaults | fields))


def make_stop(shard: str = "shd-1", **fields: Any) -> StopShard:
    defaults: dict[str, Any] = {
        "id": "cmd-2",
        "session": 1,
        "term": TERM,
        "shard_id": shard,
        "replica_id": "rep-1",
        "epoch": 1,
        "grace_s": 2.0,
    }
    return StopShard(**(defaults | fields))


def make_status(**fields: Any) -> ShardStatus:
    defaults: dict[str, Any] = {
        "command": make_start(),
        "access_key": SecretStr("engine-key"),
        "state": ShardState.PENDING,
        "since_at_s": 0.0,
        "created_at_s": 0.0,
    }
    return ShardStatus(**(defaults | fields))
