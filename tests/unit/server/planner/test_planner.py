"""The pass: what it decides, in words an operator would use."""

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from llmgw_common.ids import ModelName, NodeId, ReplicaId
from llmgw_common.reason import ReasonCode
from llmgw_common.states import ReplicaState, ShardState
from llmgw_server.fleet.model import Failures, NodeState
from llmgw_server.planner.plan import (
    DrainReplica,
    FailReplica,
    ForgetReplica,
    PlaceReplica,
    StopReplica,
    StopShard,
)
from llmgw_server.planner.planner import plan
from llmgw_server.planner.policy import Demand, Policy
from tests.builders import (
    GIB,
    make_catalog,
    make_fleet,
    make_gpus,
    make_node,
    make_replica,
    make_shard,
    ready,
)

S = ShardState
NOW = 1000.0
M = ModelName("m")
R1 = ReplicaId("rep-1")


def decide(catalog, fleet, demand=None, now_s=NOW):
    return plan(catalog, fleet, demand or Demand(), now_s)


def only(found, kind):
    (action,) = [action for action in found.actions if isinstance(action, kind)]
    return action


def fresh(*states, **fields):
    """A replica that was placed just now."""
    times = {"created_at_s": NOW, "since_at_s": NOW, "progress_at_s": NOW}
    return make_replica(*states, **(times | fields))


# --- placing -------------------------------------------------------------------------------------


def test_a_missing_replica_is_placed_with_its_gpus_port_and_reason():
    action = only(decide(make_catalog(), make_fleet(make_node(gpus=2))), PlaceReplica)
    (shard,) = action.shards
    assert shard.gpu_uuids == ("GPU-n1-0",)
    assert shard.port == 20000
    assert action.reason.code is ReasonCode.BELOW_WANTED
    assert "0 of 1 wanted" in action.reason.text


def test_the_same_input_gives_the_same_plan():
    catalog = make_catalog({"scaling": {"min": 3}})
    fleet = make_fleet(make_node(gpus=2), make_node("n2", gpus=2))
    assert decide(catalog, fleet) == decide(catalog, fleet)


def test_a_fleet_that_has_what_is_wanted_gets_an_empty_plan():
    fleet = make_fleet(make_node(gpus=1), replicas=(ready(make_replica(S.READY)),))
    found = decide(make_catalog(), fleet)
    assert found.actions == ()
    assert not found.unmet


def test_one_pass_never_promises_a_gpu_twice():
    catalog = make_catalog({"scaling": {"min": 4}})
    found = decide(catalog, make_fleet(make_node(gpus=3)))
    gpus = [gpu for a in found.actions for s in a.shards for gpu in s.gpu_uuids]
    assert len(gpus) == len(set(gpus)) == 3
    assert found.unmet[M].missing == 1


def test_gpus_of_a_shard_that_could_not_be_stopped_stay_booked():
    stuck = make_shard(S.FAILED, gpu_uuids=("GPU-n1-0",))
    assert stuck.error is not None
    stuck = replace(stuck, error=stuck.error.model_copy(update={"step": "stop"}))
    replica = make_replica(state=ReplicaState.FAILED, shards=(stuck,), since_at_s=NOW)
    found = decide(make_catalog(), make_fleet(make_node(gpus=1), replicas=(replica,)))
    assert not [a for a in found.actions if isinstance(a, PlaceReplica)]


def test_gpus_of_a_lost_node_stay_booked_until_its_agent_says_otherwise():
    replica = ready(make_replica(S.READY))
    held = replace(replica, shards=(replace(replica.shards[0], gpu_uuids=("GPU-n1-0",)),))
    node = make_node(gpus=1, state=NodeState.LOST, last_heard_at_s=0.0)
    found = decide(make_catalog(), make_fleet(node, replicas=(held,)))
    assert only(found, FailReplica).reason.code is ReasonCode.NODE_LOST
    assert not [a for a in found.actions if isinstance(a, PlaceReplica)]


def test_cpu_models_need_no_gpu():
    catalog = make_catalog({"profiles": [{"gpus": 0}]})
    assert only(decide(catalog, make_fleet(make_node())), PlaceReplica).shards[0].gpu_uuids == ()


def test_models_are_placed_by_priority():
    catalog = make_catalog({"name": "low"}, {"name": "high", "priority": 10})
    found = decide(catalog, make_fleet(make_node(gpus=1)))
    assert only(found, PlaceReplica).model == "high"
    assert "low" in found.unmet


def test_the_second_profile_is_taken_when_the_first_fits_nowhere():
    catalog = make_catalog({"profiles": [{"name": "big", "gpus": 4}, {"name": "small"}]})
    assert only(decide(catalog, make_fleet(make_node(gpus=1))), PlaceReplica).profile == "small"


def test_the_fullest_node_that_fits_is_taken():
    fleet = make_fleet(make_node("a", gpus=8), make_node("b", gpus=1))
    assert only(decide(make_catalog(), fleet), PlaceReplica).shards[0].node_name == "b"


def test_a_node_that_has_the_weights_is_preferred():
    catalog = make_catalog({"source": "file:///w.gguf"})
    fleet = make_fleet(make_node("a", gpus=1), make_node("b", gpus=8, weights=("file:///w.gguf",)))
    assert only(decide(catalog, fleet), PlaceReplica).shards[0].node_name == "b"


@pytest.mark.parametrize(
    ("node", "profile", "code", "words"),
    [
        ({"is_cordoned": True}, {}, ReasonCode.CORDONED, "1 is cordoned"),
        ({"state": NodeState.SUSPECT}, {}, ReasonCode.NODE_SUSPECT, "has gone quiet"),
        ({"state": NodeState.LOST}, {}, ReasonCode.NOT_CONNECTED, "is not connected"),
        ({"session": 0}, {}, ReasonCode.NOT_CONNECTED, "is not connected"),
        ({"engine_kinds": ()}, {}, ReasonCode.ENGINE_UNSUPPORTED, "does not run the engine"),
        ({}, {"gpus": 4}, ReasonCode.TOO_FEW_GPUS, "(best: n1, 1 of 4)"),
        ({}, {"gpu_memory": "100GiB"}, ReasonCode.TOO_LITTLE_GPU_MEMORY, "80.0 GiB of 100.0 GiB"),
        ({}, {"host_memory": "1TiB"}, ReasonCode.TOO_LITTLE_HOST_MEMORY, "short"),
        ({"port_low": 9, "port_high": 8}, {}, ReasonCode.NO_PORTS, "no free port"),
        ({}, {"pool": "h200"}, ReasonCode.NOT_IN_POOL, "is not in the pool"),
    ],
)
def test_a_node_is_turned_down_by_the_first_rule_that_fails_with_its_numbers(
    node, profile, code, words
):
    pools = ({"name": "h200", "nodes": {"labels": {"gpu": "h200"}}},)
    catalog = make_catalog({"profiles": [profile]}, pools=pools)
    found = decide(catalog, make_fleet(make_node(gpus=1, **node)))
    unmet = found.unmet[M]
    assert unmet.verdicts[0].reason.code is code
    assert words in unmet.reason.text
    assert unmet.reason.text.startswith("0 of 1 nodes fit p")


def test_an_unhealthy_gpu_is_not_free():
    gpus = tuple(replace(gpu, is_healthy=False) for gpu in make_gpus(1))
    found = decide(make_catalog(), make_fleet(replace(make_node(), gpus=gpus)))
    assert found.unmet[M].verdicts[0].reason.code is ReasonCode.TOO_FEW_GPUS


def test_a_gpu_of_unknown_memory_does_not_fit_a_profile_that_asks_for_memory():
    gpus = tuple(replace(gpu, memory_total_bytes=None) for gpu in make_gpus(1))
    catalog = make_catalog({"profiles": [{"gpu_memory": 1 * GIB}]})
    found = decide(catalog, make_fleet(replace(make_node(), gpus=gpus)))
    assert found.unmet[M].verdicts[0].reason.code is ReasonCode.TOO_LITTLE_GPU_MEMORY


def test_without_nodes_the_reason_says_that_none_has_joined():
    found = decide(make_catalog(), make_fleet())
    assert "no node has joined yet" in found.unmet[M].reason.text


def test_a_gang_is_refused_in_words_until_it_can_be_placed():
    catalog = make_catalog({"profiles": [{"shards": 2}]})
    unmet = decide(catalog, make_fleet(make_node(gpus=8))).unmet[M]
    assert "spans 2 nodes" in unmet.reason.text


# --- waiting -------------------------------------------------------------------------------------


def test_a_server_that_just_started_waits_for_the_nodes_it_knows():
    away = make_node("n2", state=NodeState.EXPECTED, last_heard_at_s=None)
    fleet = make_fleet(make_node(gpus=1), away, started_at_s=NOW - 10)
    found = decide(make_catalog(), fleet)
    assert found.actions == ()
    assert found.unmet[M].reason.code is ReasonCode.SETTLING
    assert "n2" in found.unmet[M].reason.text
    assert found.next_deadline_at_s == NOW + 20
    later = decide(make_catalog(), fleet, now_s=NOW + 20)
    assert only(later, PlaceReplica)


def test_an_adopted_replica_of_a_removed_model_is_not_stopped_before_the_server_settled():
    away = make_node("n2", state=NodeState.EXPECTED, last_heard_at_s=None)
    gone = ready(make_replica(S.READY, model=ModelName("gone"), replica="rep-9"))
    fleet = make_fleet(make_node(gpus=1), away, replicas=(gone,), started_at_s=NOW - 100)
    assert not [a for a in decide(make_catalog(), fleet).actions if isinstance(a, DrainReplica)]
    later = decide(make_catalog(), fleet, now_s=NOW + 201)
    assert only(later, DrainReplica).reason.code is ReasonCode.MODEL_REMOVED


def test_a_failed_model_waits_longer_after_each_failure():
    waits = []
    for n in (1, 2, 3, 10):
        failures = {M: Failures(in_a_row=n, last_at_s=NOW)}
        found = decide(make_catalog(), make_fleet(make_node(gpus=1), failures=failures))
        unmet = found.unmet[M]
        assert unmet.reason.code is ReasonCode.BACK_OFF
        assert unmet.retry_at_s is not None
        waits.append(unmet.retry_at_s - NOW)
    assert 10 <= waits[0] <= 12
    assert 20 <= waits[1] <= 24
    assert 40 <= waits[2] <= 48
    assert 300 <= waits[3] <= 360


def test_an_engine_that_served_and_died_once_comes_back_at_once_with_its_attempt_counted():
    failures = {M: Failures(in_a_row=1, last_at_s=NOW, had_served=True)}
    fleet = make_fleet(make_node(gpus=1), failures=failures)
    assert only(decide(make_catalog(), fleet), PlaceReplica).attempt == 1


def test_an_engine_that_keeps_dying_after_serving_is_held_back():
    failures = {M: Failures(in_a_row=2, last_at_s=NOW, had_served=True)}
    found = decide(make_catalog(), make_fleet(make_node(gpus=1), failures=failures))
    assert found.unmet[M].reason.code is ReasonCode.BACK_OFF


# --- on demand -----------------------------------------------------------------------------------

ON_DEMAND = {"scaling": {"min": 0, "idle_timeout": "60s"}}


def test_nobody_asks_for_an_on_demand_model_so_nothing_is_placed():
    assert decide(make_catalog(ON_DEMAND), make_fleet(make_node(gpus=1))).actions == ()


def test_a_waiting_request_starts_an_on_demand_model():
    found = decide(make_catalog(ON_DEMAND), make_fleet(make_node(gpus=1)), Demand(waiting={M: 3}))
    assert only(found, PlaceReplica).reason.code is ReasonCode.DEMAND


def test_a_start_goes_on_though_the_one_who_asked_has_left():
    fleet = make_fleet(make_node(gpus=1), replicas=(fresh(S.LOADING),))
    assert decide(make_catalog(ON_DEMAND), fleet).actions == ()


def test_no_traffic_is_zero_traffic_so_an_idle_replica_drains_after_its_timeout():
    replica = ready(make_replica(S.READY, since_at_s=NOW - 60), at_s=NOW - 60)
    fleet = make_fleet(make_node(gpus=1), replicas=(replica,))
    assert only(decide(make_catalog(ON_DEMAND), fleet), DrainReplica).reason.code is ReasonCode.IDLE
    found = decide(make_catalog(ON_DEMAND), fleet, now_s=NOW - 1)
    assert found.actions == ()
    assert found.next_deadline_at_s == NOW


def test_a_running_request_is_use():
    replica = ready(make_replica(S.READY), at_s=0.0)
    fleet = make_fleet(make_node(gpus=1), replicas=(replica,))
    assert decide(make_catalog(ON_DEMAND), fleet, Demand(in_flight={R1: 1})).actions == ()


# --- ending --------------------------------------------------------------------------------------


def test_surplus_ends_not_ready_ones_first_and_ready_ones_drain():
    starting = fresh(S.LOADING, replica="rep-2")
    old = ready(make_replica(S.READY, last_used_at_s=500.0))
    new = ready(make_replica(S.READY, replica="rep-3", last_used_at_s=900.0))
    fleet = make_fleet(make_node(gpus=4), replicas=(starting, old, new))
    found = decide(make_catalog(), fleet)
    assert only(found, StopReplica).replica_id == "rep-2"
    drained = only(found, DrainReplica)
    assert drained.replica_id == "rep-1"
    assert drained.deadline_at_s == NOW + 60


def test_a_draining_replica_does_not_count_so_its_replacement_is_placed():
    draining = replace(
        make_replica(S.READY, state=ReplicaState.DRAINING), drain_deadline_at_s=NOW + 50
    )
    fleet = make_fleet(make_node(gpus=2), replicas=(draining,))
    found = decide(make_catalog(), fleet, Demand(in_flight={R1: 1}))
    assert [type(a) for a in found.actions] == [PlaceReplica]


@pytest.mark.parametrize(
    ("demand", "code"),
    [
        (Demand(routed=frozenset({R1})), None),
        (Demand(in_flight={R1: 2}), None),
        (Demand(), ReasonCode.DRAINED),
    ],
)
def test_a_drain_ends_when_no_gateway_routes_to_it_and_nothing_runs(demand, code):
    draining = replace(
        make_replica(S.READY, state=ReplicaState.DRAINING), drain_deadline_at_s=NOW + 50
    )
    fleet = make_fleet(make_node(), replicas=(draining,))
    stops = [a for a in decide(make_catalog(), fleet, demand).actions if isinstance(a, StopReplica)]
    assert [stop.reason.code for stop in stops] == ([code] if code else [])


def test_a_drain_ends_at_its_deadline_whatever_runs():
    draining = replace(make_replica(S.READY, state=ReplicaState.DRAINING), drain_deadline_at_s=NOW)
    fleet = make_fleet(make_node(), replicas=(draining,))
    found = decide(make_catalog(), fleet, Demand(in_flight={R1: 2}, routed=frozenset({R1})))
    assert only(found, StopReplica).reason.code is ReasonCode.DRAIN_DEADLINE


def test_a_start_that_stands_still_fails_at_its_deadline():
    replica = fresh(S.LOADING)
    catalog = make_catalog({"profiles": [{"startup_timeout": "100s"}]})
    fleet = make_fleet(make_node(gpus=1), replicas=(replica,))
    assert decide(catalog, fleet, now_s=NOW + 99).next_deadline_at_s == NOW + 100
    failed = only(decide(catalog, fleet, now_s=NOW + 100), FailReplica)
    assert failed.reason.code is ReasonCode.START_DEADLINE
    assert "loading" in failed.reason.text


def test_a_launch_that_shows_no_life_fails_early():
    replica = fresh(S.PENDING)
    fleet = make_fleet(make_node(gpus=1), replicas=(replica,))
    failed = only(decide(make_catalog(), fleet, now_s=NOW + 120), FailReplica)
    assert failed.reason.code is ReasonCode.LAUNCH_GRACE


def test_the_other_shards_of_a_failed_replica_are_stopped():
    replica = make_replica(S.FAILED, S.READY, state=ReplicaState.FAILED, since_at_s=NOW)
    fleet = make_fleet(make_node(gpus=1), replicas=(replica,))
    assert only(decide(make_catalog(), fleet), StopShard).shard_id == "rep-1-s1"


def test_a_shard_that_nobody_claims_is_stopped():
    fleet = make_fleet(make_node(), unclaimed=(make_shard(),))
    found = decide(make_catalog({"scaling": {"min": 0}}), fleet)
    assert only(found, StopShard).reason.code is ReasonCode.UNCLAIMED


def test_an_ended_replica_is_kept_for_people_and_then_forgotten():
    replica = make_replica(S.FAILED, state=ReplicaState.FAILED, since_at_s=NOW)
    catalog = make_catalog({"scaling": {"min": 0}})
    fleet = make_fleet(make_node(), replicas=(replica,))
    assert decide(catalog, fleet, now_s=NOW + 599).actions == ()
    assert only(decide(catalog, fleet, now_s=NOW + 600), ForgetReplica)


def test_a_replica_on_a_lost_node_is_kept_while_its_engine_answers_and_replaced_after_15_min():
    node = make_node("n1", gpus=1, state=NodeState.LOST, last_heard_at_s=NOW - 60)
    spare = make_node("n2", gpus=1)
    fleet = make_fleet(node, spare, replicas=(ready(make_replica(S.READY)),))
    answering = Demand(answers={R1: True})
    assert decide(make_catalog(), fleet, answering).actions == ()
    assert only(decide(make_catalog(), fleet, Demand()), FailReplica)
    assert only(decide(make_catalog(), fleet, answering, now_s=NOW + 840), FailReplica)


# --- laws ----------------------------------------------------------------------------------------

_models = st.lists(
    st.fixed_dictionaries(
        {
            "priority": st.integers(0, 3),
            "scaling": st.fixed_dictionaries({"min": st.integers(0, 4)}),
            "profiles": st.lists(
                st.fixed_dictionaries({"gpus": st.integers(0, 4)}), min_size=1, max_size=1
            ),
        }
    ),
    min_size=1,
    max_size=4,
)
_nodes = st.lists(st.integers(0, 8), max_size=4)


@given(models=_models, gpus=_nodes)
def test_no_plan_books_a_gpu_or_a_port_twice_and_each_shortage_is_explained(models, gpus):
    catalog = make_catalog(*({"name": f"m{i}"} | model for i, model in enumerate(models)))
    fleet = make_fleet(*(make_node(f"n{i}", gpus=n) for i, n in enumerate(gpus)))
    found = decide(catalog, fleet)
    shards = [s for a in found.actions if isinstance(a, PlaceReplica) for s in a.shards]
    booked = [gpu for shard in shards for gpu in shard.gpu_uuids]
    assert len(booked) == len(set(booked))
    ports = [(shard.node_id, shard.port) for shard in shards]
    assert len(ports) == len(set(ports))
    for model in catalog.models:
        placed = sum(a.model == model.name for a in found.actions if isinstance(a, PlaceReplica))
        missing = found.unmet[ModelName(model.name)].missing if model.name in found.unmet else 0
        assert placed + missing == found.wanted[ModelName(model.name)]


@given(models=_models, gpus=_nodes)
def test_applying_a_plan_and_planning_again_starts_nothing_more(models, gpus):
    catalog = make_catalog(*({"name": f"m{i}"} | model for i, model in enumerate(models)))
    nodes = [make_node(f"n{i}", gpus=n) for i, n in enumerate(gpus)]
    placed = [a for a in decide(catalog, make_fleet(*nodes)).actions]
    replicas = tuple(
        fresh(
            S.PENDING,
            replica=f"rep-{i}",
            model=action.model,
            shards=(
                make_shard(
                    S.PENDING,
                    replica=f"rep-{i}",
                    node_id=action.shards[0].node_id,
                    gpu_uuids=action.shards[0].gpu_uuids,
                    port=action.shards[0].port,
                ),
            ),
        )
        for i, action in enumerate(placed)
    )
    assert decide(catalog, make_fleet(*nodes, replicas=replicas)).actions == ()


def test_the_policy_of_the_settings_is_the_one_that_counts():
    replica = make_replica(S.FAILED, state=ReplicaState.FAILED, since_at_s=NOW)
    fleet = make_fleet(make_node(), replicas=(replica,))
    catalog = make_catalog({"scaling": {"min": 0}})
    found = plan(catalog, fleet, Demand(), NOW + 1, Policy(retention_s=1.0))
    assert only(found, ForgetReplica)
    assert NodeId("node-n1") in fleet.nodes
