"""The main story over real processes: join, apply, serve, fail, come back, leave."""

import os
import signal
import threading

import httpx
import psutil
import pytest

from llmgw_common.api.client import ApiError
from tests.harness import Fleet, Program, eventually, marked_processes, simulated_catalog


def test_a_model_is_started_served_and_explained(fleet):
    fleet.start_agent("n1")
    fleet.apply(simulated_catalog({"aliases": ["gpt-4o"]}))
    fleet.wait_model("tiny")
    answer = fleet.chat("gpt-4o", max_tokens=3)
    assert answer.status_code == 200
    assert answer.json()["usage"]["completion_tokens"] == 3
    with fleet.api() as api:
        assert api.explain("tiny").lines[0] == "tiny serves: 1 ready, 1 wanted"
        (replica,) = api.replicas()
        assert [t.after for t in replica.story][-1] == "ready"
        assert answer.headers["x-llmgw-replica"] == replica.id
        assert [e.code for e in api.events() if e.object_kind == "replica"] == ["placed", "ready"]


def test_a_model_without_a_node_says_why_and_a_request_is_answered_at_once(fleet):
    fleet.apply(simulated_catalog({}))
    fleet.wait_model("tiny", "waiting")
    answer = fleet.chat("tiny")
    assert answer.status_code == 503
    assert "no node has joined yet" in answer.json()["error"]["message"]
    assert int(answer.headers["retry-after"]) > 0


def test_a_killed_engine_fails_with_its_signal_and_log_and_comes_back_by_itself(fleet):
    fleet.start_agent("n1")
    fleet.apply(simulated_catalog({}))
    fleet.wait_model("tiny")
    (before,) = fleet.engine_pids("tiny")
    os.kill(before, signal.SIGKILL)
    (after,) = eventually(
        lambda: [p for p in fleet.engine_pids("tiny") if p != before], what="another engine"
    )
    fleet.wait_model("tiny")
    assert after != before
    with fleet.api() as api:
        failed = next(r for r in api.replicas() if r.state == "failed")
        assert "SIGKILL" in failed.error
        assert failed.shards[0].log_tail[-1] == "model loaded"
        assert "failed 1 times in a row" in "\n".join(api.explain("tiny").lines)
        codes = [e.code for e in api.events() if e.object_kind == "replica"]
        assert codes == ["placed", "ready", "failed", "placed", "ready"]


def test_an_engine_that_cannot_load_is_held_back_and_shown_with_its_class(fleet):
    fleet.start_agent("n1")
    fleet.apply(simulated_catalog({"args": {"fail-load": "CUDA out of memory: 80 GiB"}}))

    def held_back():
        with fleet.api() as api:
            return "next try in" in api.explain("tiny").reason

    eventually(held_back, what="the back-off")
    with fleet.api() as api:
        failed = next(r for r in api.replicas() if r.state == "failed")
    assert failed.shards[0].error_kind == "out_of_memory"


def test_a_killed_server_comes_back_with_everything_and_no_engine_was_touched(fleet):
    fleet.start_agent("n1")
    fleet.apply(simulated_catalog({}))
    fleet.wait_model("tiny")
    with fleet.api() as api:
        extra = api.keys()
    pids = fleet.engine_pids("tiny")
    fleet.server.kill()
    fleet.start_server()
    fleet.wait_model("tiny")
    assert fleet.engine_pids("tiny") == pids
    assert psutil.Process(pids[0]).is_running()
    with fleet.api() as api:
        assert api.catalog().revision == 1
        assert api.keys() == extra
        assert [n.name for n in api.nodes()] == ["n1"]
    assert fleet.chat("tiny", max_tokens=1).status_code == 200


def test_a_killed_agent_adopts_its_engine_and_streams_go_on(fleet):
    agent = fleet.start_agent("n1")
    fleet.apply(simulated_catalog({"args": {"tokens-per-s": 20, "tokens": 60}}))
    fleet.wait_model("tiny")
    pids = fleet.engine_pids("tiny")
    got: list[str] = []

    def read_stream():
        body = {"model": "tiny", "stream": True, "messages": [{"role": "user", "content": "Hi"}]}
        url = f"{fleet.url}/v1/chat/completions"
        with httpx.stream("POST", url, json=body, headers=fleet.headers, timeout=30) as answer:
            got.extend(line for line in answer.iter_lines() if line)

    reader = threading.Thread(target=read_stream)
    reader.start()
    eventually(lambda: fleet_in_flight(fleet) == 1, what="the stream")
    agent.kill()
    agent.start()
    eventually(lambda: "engine adopted" in agent.text(), what="the adoption")
    reader.join(30)
    assert got[-1] == "data: [DONE]"
    assert fleet.engine_pids("tiny") == pids
    fleet.wait_model("tiny")


def fleet_in_flight(fleet):
    with fleet.api() as api:
        return sum(r.in_flight for r in api.replicas())


def test_a_removed_model_drains_and_its_engine_ends(fleet):
    fleet.start_agent("n1")
    fleet.apply(simulated_catalog({}))
    fleet.wait_model("tiny")
    (pid,) = fleet.engine_pids("tiny")
    fleet.apply(simulated_catalog({"name": "other"}))
    eventually(lambda: not psutil.pid_exists(pid) or is_zombie(pid), what="the engine's end")
    assert fleet.chat("tiny").status_code == 404


def is_zombie(pid):
    try:
        return psutil.Process(pid).status() == psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return True


def test_a_request_starts_an_on_demand_model_and_idleness_ends_it(fleet):
    fleet.start_agent("n1")
    fleet.apply(simulated_catalog({"scaling": {"min": 0, "idle_timeout": "2s"}}))
    fleet.wait_model("tiny", "on demand")
    assert fleet.chat("tiny", max_tokens=1).status_code == 200
    fleet.wait_model("tiny", "on demand")
    with fleet.api() as api:
        assert any("nobody" in t.why or "no request" in t.why for t in api.replicas()[0].story)


def test_an_engine_that_ignores_sigterm_is_ended_all_the_same(fleet):
    fleet.start_agent("n1", stop_grace="1s", stop_engines_on_exit=True)
    fleet.apply(simulated_catalog({"args": {"ignore-sigterm": True}}))
    fleet.wait_model("tiny")
    (pid,) = fleet.engine_pids("tiny")
    fleet.agents["n1"].stop()
    assert is_zombie(pid)
    assert "SIGKILL" in fleet.agents["n1"].text()


def test_an_agent_that_ends_leaves_its_engines_alone(fleet):
    agent = fleet.start_agent("n1")
    fleet.apply(simulated_catalog({}))
    fleet.wait_model("tiny")
    (pid,) = fleet.engine_pids("tiny")
    assert agent.stop() == 0
    assert psutil.Process(pid).is_running()
    assert fleet.chat("tiny", max_tokens=1).status_code == 200


def test_a_client_that_leaves_frees_the_engines_slot(fleet):
    fleet.start_agent("n1")
    fleet.apply(simulated_catalog({"args": {"tokens-per-s": 5, "tokens": 1000}}))
    fleet.wait_model("tiny")
    body = {"model": "tiny", "stream": True, "messages": [{"role": "user", "content": "Hi"}]}
    url = f"{fleet.url}/v1/chat/completions"
    with httpx.stream("POST", url, json=body, headers=fleet.headers, timeout=30) as answer:
        lines = answer.iter_lines()
        next(lines)
        with fleet.api() as api:
            engine = api.replicas()[0].shards[0].url
        assert "vllm:num_requests_running 1" in httpx.get(f"{engine}/metrics").text
    eventually(
        lambda: "vllm:num_requests_running 0" in httpx.get(f"{engine}/metrics").text, 1.0, "a slot"
    )
    eventually(lambda: fleet_in_flight(fleet) == 0, what="no request in flight")


def test_logs_are_read_and_followed_through_the_channel(fleet):
    fleet.start_agent("n1")
    fleet.apply(simulated_catalog({}))
    fleet.wait_model("tiny")
    with fleet.api() as api:
        replica = api.replicas()[0].id
        assert list(api.logs(replica, lines=5, follow=False))[-1] == "model loaded"
        assert next(api.logs(replica, lines=5, follow=True)) == "model loaded"
        with pytest.raises(ApiError) as caught:
            list(api.logs("rep-nobody", lines=1, follow=False))
    assert caught.value.problem.status == 404


def test_simulated_gpus_are_placed_each_once(fleet):
    fleet.start_agent("n1", inventory={"simulate": "4xH200"})
    catalog = simulated_catalog({"scaling": {"min": 5}})
    catalog["models"][0]["profiles"][0]["gpus"] = 1
    fleet.apply(catalog)
    with fleet.api() as api:
        eventually(lambda: api.model("tiny").ready == 4, what="four replicas")
        found = api.model("tiny")
        assert found.state == "degraded"
        assert "0 of 1 nodes fit cpu" in found.why
        used = [s.gpu_indices for r in api.replicas() for s in r.shards]
        assert sorted(used) == [(0,), (1,), (2,), (3,)]
        assert all(g.model == "tiny" for g in api.nodes()[0].gpus)


def test_nothing_of_a_fleet_listens_beyond_loopback(fleet):
    fleet.start_agent("n1")
    fleet.apply(simulated_catalog({}))
    fleet.wait_model("tiny")
    ours = [fleet.server.pid, fleet.agents["n1"].pid, *fleet.engine_pids("tiny")]
    listening = [
        s.laddr.ip
        for pid in ours
        for s in psutil.Process(pid).net_connections("tcp")
        if s.status == psutil.CONN_LISTEN
    ]
    assert listening
    assert set(listening) == {"127.0.0.1"}
    assert not psutil.Process(fleet.agents["n1"].pid).net_connections("tcp") or all(
        s.status != psutil.CONN_LISTEN
        for s in psutil.Process(fleet.agents["n1"].pid).net_connections("tcp")
    )


def test_a_second_agent_with_the_same_credential_is_refused_in_words(fleet, tmp_path):
    fleet.start_agent("n1")
    clone = tmp_path / "clone"
    clone.mkdir()
    (clone / "credential.json").write_text((tmp_path / "n1" / "credential.json").read_text())
    text = (tmp_path / "n1.yaml").read_text().replace(str(tmp_path / "n1"), str(clone))
    config = tmp_path / "clone.yaml"
    config.write_text(text)
    program = Program("llmgw_agent", config, tmp_path / "clone.log")
    program.start()
    try:
        eventually(lambda: "another agent process uses the credential" in program.text())
        assert fleet.node_state("n1") == "connected"
    finally:
        program.kill()


def test_a_closed_fleet_leaves_no_process(fleet, tmp_path):
    fleet.start_agent("n1", stop_engines_on_exit=True)
    fleet.apply(simulated_catalog({}))
    fleet.wait_model("tiny")
    assert fleet.agents["n1"].stop() == 0
    assert fleet.server.stop() == 0
    assert [p for p in marked_processes(tmp_path) if p.status() != psutil.STATUS_ZOMBIE] == []


def test_a_server_that_lost_its_database_takes_a_node_in_again_by_the_shared_token(tmp_path):
    token = tmp_path / "shared.token"
    token.write_text("a-token-for-all-nodes")
    fleet = Fleet(tmp_path, bootstrap_join_token_file=str(token))
    try:
        fleet.start_server()
        fleet.start_agent("n1", join_token_file=str(token))
        fleet.server.kill()
        for file in (tmp_path / "server").glob("llmgw.db*"):
            file.unlink()
        fleet.start_server()
        eventually(lambda: fleet.node_state("n1") == "connected", 40, "the node")
    finally:
        fleet.close()


def test_a_removed_nodes_model_is_placed_on_another_node_at_once(fleet):
    fleet.start_agent("n1")
    fleet.apply(simulated_catalog({}))
    fleet.wait_model("tiny")
    fleet.start_agent("n2")
    with fleet.api() as api:
        api.remove_node("n1")
        eventually(
            lambda: [r.node for r in api.replicas() if r.state == "ready"] == ["n2"],
            15,
            "the replica on n2",
        )
    assert fleet.chat("tiny", max_tokens=1).status_code == 200
