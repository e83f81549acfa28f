"""Shows how the models come up: live on a terminal, line by line elsewhere."""

import time
from collections.abc import Callable, Sequence

from rich.console import Console
from rich.live import Live
from rich.table import Table

from llmgw_common.api.client import ApiClient
from llmgw_common.api.models import ModelView, ReplicaView
from llmgw_common.cli.output import ago, cell, state
from llmgw_common.units import format_bytes


class NotReadyError(Exception):
    """The models did not come up; the text says why."""


def wait_ready(
    client: ApiClient,
    console: Console,
    names: Sequence[str],
    check: Callable[[], None],
    limit_s: float,
) -> None:
    """Show the starts until the named models are ready.

    Raises:
        NotReadyError: the limit passed, or a start failed three times.
    """
    lines = _Lines(console)
    with Live(console=console, refresh_per_second=8, transient=False) as live:
        for _ in range(int(limit_s / 0.2)):
            check()
            models, replicas = client.models(), client.replicas()
            if console.is_terminal:
                live.update(_table(models, replicas))
            else:
                lines.tell(replicas)
            if all(m.state in ("ready", "on demand") for m in models if m.name in names):
                return
            for name in names:
                if sum(r.model == name and r.state == "failed" for r in replicas) >= 3:
                    raise NotReadyError("\n".join(client.explain(name).lines))
            time.sleep(0.2)
    why = "\n".join(line for name in names for line in client.explain(name).lines)
    raise NotReadyError(f"not ready after {limit_s:.0f} s:\n{why}")


def step_of(replica: ReplicaView) -> str:
    """Return what a replica does now, with its numbers."""
    shard = replica.shards[0] if replica.shards else None
    if shard is None or replica.state not in ("starting", "placing"):
        return replica.error or replica.state
    if shard.fetch_done_bytes is None:
        return f"{shard.state}: {shard.step}" if shard.step else shard.state
    total = shard.fetch_total_bytes or 0
    done = format_bytes(shard.fetch_done_bytes)
    if not total:
        return f"fetching weights: {done}"
    percent = min(100 * shard.fetch_done_bytes // total, 100)
    bar = "━" * (percent // 5) + "─" * (20 - percent // 5)
    return f"fetching weights: {bar} {percent} % ({done} of {format_bytes(total)})"


def _table(models: Sequence[ModelView], replicas: Sequence[ReplicaView]) -> Table:
    grid = Table(box=None, pad_edge=False)
    for model in models:
        grid.add_row(cell(model.name), state(model.state), "", cell(model.why))
        for replica in replicas:
            if replica.model == model.name:
                grid.add_row("", f"  {replica.id}", ago(replica.since), cell(step_of(replica)))
    return grid


class _Lines:
    """Says each new step once."""

    def __init__(self, console: Console) -> None:
        self._console = console
        self._said: dict[str, str] = {}

    def tell(self, replicas: Sequence[ReplicaView]) -> None:
        """Print what changed."""
        for replica in replicas:
            step = step_of(replica)
            if self._said.get(replica.id) != step:
                self._said[replica.id] = step
                self._console.print(f"  {cell(replica.model)}: {cell(step)}")
