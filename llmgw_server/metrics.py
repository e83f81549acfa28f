"""What Prometheus sees of the control plane; the gateway's own are in gateway/metrics.py."""

from collections import Counter as Tally
from collections.abc import Callable, Iterable

from prometheus_client import CollectorRegistry, Counter, Histogram
from prometheus_client.core import GaugeMetricFamily
from prometheus_client.registry import Collector

from llmgw_server.fleet.model import FleetView
from llmgw_server.planner.plan import Plan


class ReconcilerMetrics:
    """How long passes take and what they do."""

    def __init__(self, registry: CollectorRegistry) -> None:
        self._passes = Histogram(
            "llmgw_reconcile_pass_seconds",
            "Time of a reconcile pass",
            buckets=(0.0005, 0.001, 0.005, 0.01, 0.05, 0.1, 0.5, 1, 5),
            registry=registry,
        )
        self._actions = Counter(
            "llmgw_reconcile_actions", "Actions by kind", ["kind"], registry=registry
        )

    def measured(self, seconds: float, plan: Plan) -> None:
        """Take one pass."""
        self._passes.observe(seconds)
        for action in plan.actions:
            self._actions.labels(type(action).__name__).inc()


class FleetCollector(Collector):
    """Counts the fleet when it is asked to, so that nothing is kept twice."""

    def __init__(self, fleet: Callable[[], FleetView]) -> None:
        self._fleet = fleet

    def collect(self) -> Iterable[GaugeMetricFamily]:
        """Return the gauges."""
        fleet = self._fleet()
        nodes = GaugeMetricFamily("llmgw_nodes", "Nodes by state", labels=["state"])
        for state, count in Tally(node.state.value for node in fleet.nodes.values()).items():
            nodes.add_metric([state], count)
        yield nodes
        replicas = GaugeMetricFamily(
            "llmgw_replicas", "Replicas by model and state", labels=["model", "state"]
        )
        tally = Tally((r.model, r.state.value) for r in fleet.replicas.values())
        for (model, state), count in tally.items():
            replicas.add_metric([model, state], count)
        yield replicas
        gpus = GaugeMetricFamily("llmgw_gpus", "GPUs by state", labels=["state"])
        held = {
            uuid
            for replica in fleet.replicas.values()
            for shard in replica.shards
            if shard.holds_resources
            for uuid in shard.gpu_uuids
        }
        states = Tally(
            "unhealthy" if not gpu.is_healthy else "in_use" if gpu.uuid in held else "free"
            for node in fleet.nodes.values()
            for gpu in node.gpus
        )
        for state, count in states.items():
            gpus.add_metric([state], count)
        yield gpus
