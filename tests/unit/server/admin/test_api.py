"""The admin API over the whole server: roles, shapes, catalog, keys, nodes, events."""

import asyncio
from datetime import timedelta

import pytest

from llmgw_common.api_keys import looks_valid, mint_key
from llmgw_common.clock import FakeClock
from llmgw_server.admin.system import OPEN_PATHS
from tests.server_harness import client_of, running_server

CATALOG = """
engines: [{name: sim, kind: simulated}]
models:
  - name: org/tiny
    aliases: [gpt-4o]
    profiles: [{name: cpu, engine: sim, gpus: 0}]
"""


@pytest.fixture
def clock():
    return FakeClock()


@pytest.fixture
async def server(tmp_path, clock):
    async with running_server(tmp_path, clock) as (app, key):
        async with client_of(app, key) as admin:
            yield app, admin


async def make_key(admin, role, **fields):
    answer = await admin.post("/api/v1/keys", json={"name": f"a-{role}", "role": role} | fields)
    assert answer.status_code == 201
    return answer.json()["text"]


def api_routes(app):
    for route in app.api.routes:
        for method in sorted(getattr(route, "methods", None) or ()):
            if method != "HEAD":
                yield method, route.path, route


async def test_every_route_wants_a_key_except_those_for_load_balancers_and_agents(server):
    app, _ = server
    async with client_of(app, None) as stranger:
        for method, path, _route in api_routes(app):
            found = path.replace("{name:path}", "x").replace("{name}", "x")
            found = found.replace("{replica_id}", "x").replace("{key_id}", "x")
            answer = await stranger.request(method, found)
            if path in OPEN_PATHS:
                assert answer.status_code == 200, path
            elif path.startswith("/agent/"):
                assert answer.status_code == 422, path  # its own door: a join token in the body
            elif path == "/metrics":
                assert answer.status_code in (200, 401)
            else:
                assert answer.status_code == 401, (method, path)


async def test_every_api_route_names_its_role(server):
    app, _ = server
    for method, path, route in api_routes(app):
        if path.startswith("/api/"):
            calls = [d.call for d in route.dependant.dependencies]
            assert any(hasattr(call, "role") for call in calls), (method, path)


@pytest.mark.parametrize(
    ("role", "may_read", "may_operate", "may_admin"),
    [
        ("client", False, False, False),
        ("viewer", True, False, False),
        ("operator", True, True, False),
        ("admin", True, True, True),
    ],
)
async def test_roles_open_what_they_should_and_no_more(
    server, role, may_read, may_operate, may_admin
):
    app, admin = server
    key = await make_key(admin, role)
    expected = {True: (200, 201, 404, 422), False: (403,)}
    calls = [
        (may_read, "GET", "/api/v1/models", None),
        (may_read, "GET", "/api/v1/events", None),
        (may_operate, "POST", "/api/v1/nodes/none/cordon", None),
        (may_operate, "GET", "/api/v1/replicas/none/logs", None),
        (may_admin, "PUT", "/api/v1/catalog", {"text": CATALOG}),
        (may_admin, "GET", "/api/v1/keys", None),
        (may_admin, "POST", "/api/v1/keys", {"name": "x"}),
        (may_admin, "POST", "/api/v1/join-tokens", {}),
        (may_admin, "DELETE", "/api/v1/nodes/none", None),
    ]
    async with client_of(app, key) as client:
        for may, method, path, body in calls:
            answer = await client.request(method, path, json=body)
            assert answer.status_code in expected[may], (role, method, path, answer.text)


@pytest.mark.parametrize("header", ["authorization", "x-api-key"])
@pytest.mark.parametrize(
    "credential",
    ["", "nope", "' OR '1'='1", "llmgw-" + "x" * 50, "é" * 10, "x" * 60_000, mint_key()],
)
async def test_any_wrong_credential_is_the_same_401(server, header, credential):
    app, _ = server
    value = f"Bearer {credential}" if header == "authorization" else credential
    async with client_of(app, None) as stranger:
        answer = await stranger.get("/api/v1/models", headers={header: value.encode("utf-8")})
    assert answer.status_code == 401
    assert answer.headers["content-type"] == "application/problem+json"
    assert answer.json()["code"] == "unauthenticated"
    assert "A valid API key is needed" in answer.json()["detail"]


async def test_a_catalog_is_applied_shown_and_not_repeated(server):
    _, admin = server
    first = (await admin.put("/api/v1/catalog", json={"text": CATALOG})).json()
    assert (first["revision"], first["is_changed"]) == (1, True)
    again = (await admin.put("/api/v1/catalog", json={"text": CATALOG})).json()
    assert (again["revision"], again["is_changed"]) == (1, False)
    shown = await admin.get("/api/v1/catalog")
    assert shown.json()["text"] == CATALOG
    assert shown.headers["etag"] == '"1"'


async def test_a_dry_run_tells_the_changes_and_applies_nothing(server):
    _, admin = server
    found = (await admin.put("/api/v1/catalog", json={"text": CATALOG, "dry_run": True})).json()
    assert [c["path"] for c in found["changes"]] == ["engines.sim", "models.org/tiny"]
    assert (await admin.get("/api/v1/catalog")).json()["revision"] == 0


async def test_a_catalog_with_mistakes_tells_all_of_them_and_applies_nothing(server):
    _, admin = server
    text = CATALOG + "    scaling: {mim: 1, idle_timeout: soon}\n"
    answer = await admin.put("/api/v1/catalog", json={"text": text, "file": "c.yaml"})
    assert answer.status_code == 422
    errors = answer.json()["errors"]
    assert {(e["file"], e["line"], e["path"]) for e in errors} == {
        ("c.yaml", 7, "models[0].scaling.mim"),
        ("c.yaml", 7, "models[0].scaling.idle_timeout"),
    }
    assert any("did you mean 'min'?" in e["hint"] for e in errors)
    assert (await admin.get("/api/v1/catalog")).json()["revision"] == 0


async def test_an_apply_on_a_stale_revision_is_refused(server):
    _, admin = server
    await admin.put("/api/v1/catalog", json={"text": CATALOG})
    other = CATALOG.replace("tiny", "other")
    for kwargs in ({"json": {"text": other, "if_revision": 0}},):
        assert (await admin.put("/api/v1/catalog", **kwargs)).status_code == 412
    headers = {"if-match": '"0"'}
    answer = await admin.put("/api/v1/catalog", json={"text": other}, headers=headers)
    assert answer.status_code == 412
    headers = {"if-match": '"1"'}
    answer = await admin.put("/api/v1/catalog", json={"text": other}, headers=headers)
    assert answer.json()["revision"] == 2


async def test_models_with_slashes_and_aliases_are_found_plain_and_encoded(server):
    app, admin = server
    await admin.put("/api/v1/catalog", json={"text": CATALOG})
    app.loop.one_pass()
    for name in ("org/tiny", "org%2Ftiny", "gpt-4o"):
        answer = await admin.get(f"/api/v1/models/{name}")
        assert answer.json()["name"] == "org/tiny"
        explained = (await admin.get(f"/api/v1/models/{name}/explain")).json()
        assert explained["reason_code"] == "no_place"
        assert "no node has joined yet" in explained["reason"]
    assert (await admin.get("/api/v1/models/none")).status_code == 404


async def test_a_new_keys_text_is_shown_once_and_works_at_once_until_revoked(server):
    app, admin = server
    text = await make_key(admin, "viewer")
    assert looks_valid(text)
    async with client_of(app, text) as viewer:
        assert (await viewer.get("/api/v1/models")).status_code == 200
        listed = (await admin.get("/api/v1/keys")).json()["items"]
        assert text not in str(listed)
        ident = next(k["id"] for k in listed if k["name"] == "a-viewer")
        assert (await admin.delete(f"/api/v1/keys/{ident}")).status_code == 204
        assert (await viewer.get("/api/v1/models")).status_code == 401


async def test_a_key_stops_at_its_expiry(server, clock):
    app, admin = server
    text = await make_key(admin, "viewer", expires_in_s=60)
    async with client_of(app, text) as viewer:
        assert (await viewer.get("/api/v1/models")).status_code == 200
        clock.jump_wall(timedelta(seconds=61).total_seconds())
        assert (await viewer.get("/api/v1/models")).status_code == 401


async def test_the_last_admin_key_cannot_be_revoked(server):
    _, admin = server
    (only,) = (await admin.get("/api/v1/keys")).json()["items"]
    answer = await admin.delete(f"/api/v1/keys/{only['id']}")
    assert answer.status_code == 409
    assert "last usable admin key" in answer.json()["detail"]


async def test_a_join_token_makes_a_node_once(server):
    app, admin = server
    made = await admin.post("/api/v1/join-tokens", json={"labels": {"rack": "r7"}})
    body = {"token": made.json()["text"], "node_name": "n1", "addresses": ["127.0.0.1"]}
    async with client_of(app, None) as agent:
        joined = await agent.post("/agent/v1/join", json=body)
        assert joined.status_code == 200
        assert joined.json()["credential"].startswith("llmgw-node-")
        again = await agent.post("/agent/v1/join", json=body | {"node_name": "n2"})
        assert again.status_code == 401
        assert "used up" in again.json()["detail"]
    (node,) = (await admin.get("/api/v1/nodes")).json()["items"]
    assert (node["name"], node["state"]) == ("n1", "expected")
    cordoned = (await admin.post("/api/v1/nodes/n1/cordon")).json()
    assert cordoned["is_cordoned"] is True
    assert (await admin.delete("/api/v1/nodes/n1")).status_code == 204
    assert (await admin.get("/api/v1/nodes/n1")).status_code == 404


async def test_what_people_do_is_an_event_with_its_actor_and_no_secret(server):
    _, admin = server
    text = await make_key(admin, "client")
    await admin.put("/api/v1/catalog", json={"text": CATALOG})
    page = (await admin.get("/api/v1/events")).json()
    found = [(e["object_kind"], e["code"], e["actor"]) for e in page["items"]]
    assert ("key", "created", "first-admin") in found
    assert ("catalog", "applied", "first-admin") in found
    assert text not in str(page)
    ids = [e["id"] for e in page["items"]]
    assert ids == sorted(ids)
    rest = (await admin.get("/api/v1/events", params={"since": ids[0]})).json()["items"]
    assert [e["id"] for e in rest] == ids[1:]


async def test_lists_are_paged_by_a_cursor(server):
    _, admin = server
    for i in range(5):
        await admin.post("/api/v1/keys", json={"name": f"k{i}"})
    seen, cursor = [], ""
    while True:
        params = {"limit": 2, "cursor": cursor}
        page = (await admin.get("/api/v1/keys", params=params)).json()
        assert len(page["items"]) <= 2
        seen += [k["id"] for k in page["items"]]
        cursor = page["next"]
        if not cursor:
            break
    assert len(seen) == len(set(seen)) == 6


@pytest.mark.parametrize(
    ("method", "path", "status"),
    [("GET", "/nothing", 404), ("POST", "/healthz", 405), ("GET", "/api/v1/replicas/x", 404)],
)
async def test_every_error_is_a_problem_document(server, method, path, status):
    _, admin = server
    answer = await admin.request(method, path)
    assert answer.status_code == status
    assert answer.headers["content-type"] == "application/problem+json"
    assert answer.json()["status"] == status


async def test_a_fault_of_ours_tells_nothing_of_its_insides(server, monkeypatch):
    _, admin = server

    def broken(*_):
        raise RuntimeError("password=hunter2")

    monkeypatch.setattr("llmgw_server.admin.nodes.page_of", broken)
    answer = await admin.get("/api/v1/nodes")
    assert answer.status_code == 500
    assert "hunter2" not in answer.text


async def test_metrics_are_prometheus_text_without_key_names(server):
    app, admin = server
    await admin.put("/api/v1/catalog", json={"text": CATALOG})
    app.loop.one_pass()
    text = (await admin.get("/metrics")).text
    assert "llmgw_reconcile_pass_seconds_count" in text
    assert "first-admin" not in text


async def test_the_openapi_document_has_stable_operation_ids(server):
    _, admin = server
    paths = (await admin.get("/api/v1/openapi.json")).json()["paths"]
    ids = [operation["operationId"] for path in paths.values() for operation in path.values()]
    assert {"apply_catalog", "explain_model", "list_events", "create_key"} <= set(ids)
    assert len(ids) == len(set(ids))


async def test_a_stranger_is_turned_away_before_a_body_is_read(server):
    app, _ = server
    taken = 0

    async def body():
        nonlocal taken
        for _ in range(1000):
            taken += 1
            yield b"x" * 65536

    async with client_of(app, None) as stranger:
        answer = await stranger.put("/api/v1/catalog", content=body())
        assert answer.status_code == 401
        answer = await stranger.put("/api/v1/catalog", content=b"{not json")
        assert answer.status_code == 401


async def test_a_body_beyond_its_limit_is_413_announced_or_not(server):
    _, admin = server

    async def body():
        for _ in range(200):
            yield b"x" * 65536

    assert (await admin.put("/api/v1/catalog", content=body())).status_code == 413
    assert (await admin.put("/api/v1/catalog", content=b"x" * (10 << 20))).status_code == 413
    assert (await admin.post("/agent/v1/join", content=b"x" * 100_000)).status_code == 413


async def test_two_revocations_at_once_leave_an_admin(server):
    _, admin = server
    await make_key(admin, "admin")
    ids = [k["id"] for k in (await admin.get("/api/v1/keys")).json()["items"]]
    answers = await asyncio.gather(*(admin.delete(f"/api/v1/keys/{i}") for i in ids))
    assert sorted(a.status_code for a in answers) in ([204, 401], [204, 409])


async def test_two_joins_under_one_name_are_one_node(server):
    app, admin = server
    made = await admin.post("/api/v1/join-tokens", json={"uses": 5})
    body = {"token": made.json()["text"], "node_name": "n1", "addresses": ["127.0.0.1"]}
    async with client_of(app, None) as agent:
        answers = await asyncio.gather(*(agent.post("/agent/v1/join", json=body) for _ in range(4)))
    assert {a.status_code for a in answers} == {200}
    assert len({a.json()["node_id"] for a in answers}) == 1
    assert len((await admin.get("/api/v1/nodes")).json()["items"]) == 1


async def test_dry_run_and_revision_may_stand_in_the_query(server):
    _, admin = server
    body = {"text": CATALOG}
    dry = await admin.put("/api/v1/catalog", params={"dry_run": 1}, json=body)
    assert dry.json()["is_changed"] is False
    assert (await admin.get("/api/v1/catalog")).json()["revision"] == 0
    stale = await admin.put("/api/v1/catalog", params={"if_revision": 7}, json=body)
    assert stale.status_code == 412


@pytest.mark.parametrize("number", ["99999999999999999999", "²", "-1", "x", "9" * 5000])
async def test_an_odd_number_is_the_callers_mistake_and_no_fault_of_ours(server, number):
    _, admin = server
    answer = await admin.get("/api/v1/events", params={"since": number})
    assert answer.status_code == 422
    headers = {"if-match": f'"{number}"'.encode()}
    answer = await admin.put("/api/v1/catalog", json={"text": CATALOG}, headers=headers)
    assert answer.status_code == 400


async def test_a_wrong_method_is_told_the_right_ones(server):
    _, admin = server
    assert (await admin.delete("/api/v1/models")).headers["allow"] == "GET"
