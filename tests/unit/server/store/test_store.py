"""What must survive: over a real SQLite file."""

import asyncio
import signal
import sqlite3
import subprocess
import sys
import textwrap
from datetime import UTC, datetime, timedelta

import pytest

from llmgw_common.errors import LlmgwError
from llmgw_common.ids import KeyId, NodeId
from llmgw_common.mint import SeededIds
from llmgw_common.protocol.messages import Term
from llmgw_server.access.enroll import EnrolledNode, JoinToken
from llmgw_server.access.keys import StoredKey
from llmgw_server.access.term import ServerTerm
from llmgw_server.catalog.revisions import Revision
from llmgw_server.events import Event
from llmgw_server.gateway.account import UsageKey, UsageRow
from llmgw_server.gateway.auth import KeyRecord
from llmgw_server.store.database import Database
from llmgw_server.store.fleet_rows import EnrollmentRows, EventRows
from llmgw_server.store.rows import KeyRows, RevisionRows, TermRows, UsageRows
from tests.server_harness import client_of, running_server, sqlite_url

AT = datetime(2026, 1, 2, 3, 4, tzinfo=UTC)


@pytest.fixture
async def database(tmp_path):
    found = await Database.open(sqlite_url(tmp_path))
    yield found
    await found.close()


async def test_sqlite_runs_in_wal_mode_and_syncs_each_commit(database):
    async with database.begin() as connection:
        for pragma, value in (("journal_mode", "wal"), ("synchronous", 2), ("foreign_keys", 1)):
            found = (await connection.exec_driver_sql(f"PRAGMA {pragma}")).scalar()
            assert found == value


async def test_revisions_come_back_newest_first_and_a_number_is_taken_once(database):
    rows = RevisionRows(database)
    assert await rows.latest() is None
    for number in (1, 2):
        revision = Revision(number=number, text=f"t{number}", at=AT, actor="a", changes=1)
        await rows.add(revision)
    assert (await rows.latest()).text == "t2"
    assert [r.number for r in await rows.history(10)] == [2, 1]
    with pytest.raises(LlmgwError) as caught:
        await rows.add(Revision(number=2, text="x", at=AT, actor="b", changes=1))
    assert caught.value.code == "revision_changed"


async def test_keys_come_back_as_they_were(database):
    rows = KeyRows(database)
    record = KeyRecord(
        key_id=KeyId("k"),
        name="n",
        role="client",
        digest=b"d" * 32,
        models=frozenset({"a", "b"}),
        expires_at=AT,
    )
    key = StoredKey(record=record, created_at=AT)
    await rows.put(key)
    await rows.put(key)
    assert await rows.all() == [key]


async def test_nodes_and_tokens_come_back_and_a_token_has_so_many_uses(database):
    rows = EnrollmentRows(database)
    node = EnrolledNode(
        node_id=NodeId("n"),
        name="n1",
        addresses=("10.0.0.1",),
        labels={"a": "b"},
        is_cordoned=True,
        enrolled_at=AT,
        digest=b"n" * 32,
    )
    await rows.put_node(node)
    assert await rows.nodes() == [node]
    token = JoinToken(
        token_id="t", digest=b"t" * 32, uses_left=2, expires_at=AT + timedelta(hours=1), labels={}
    )
    await rows.put_token(token)
    assert (await rows.use_token(b"t" * 32, AT)).uses_left == 1
    assert (await rows.use_token(b"t" * 32, AT)).uses_left == 0
    assert await rows.use_token(b"t" * 32, AT) is None


async def test_an_expired_token_is_no_token(database):
    rows = EnrollmentRows(database)
    await rows.put_token(
        JoinToken(token_id="t", digest=b"t" * 32, uses_left=1, expires_at=AT, labels={})
    )
    assert await rows.use_token(b"t" * 32, AT) is None


async def test_events_are_read_from_an_id_on_and_forgotten_by_age(database):
    rows = EventRows(database)
    batch = [
        Event(id=i, at=AT + timedelta(days=i), object_kind="o", object_id="x", code="c", text="t")
        for i in (1, 2, 3)
    ]
    await rows.write(batch)
    assert await rows.last_id() == 3
    assert [e.id for e in await rows.read(1, 10)] == [2, 3]
    assert [e.id for e in await rows.read(None, 2)] == [2, 3]
    await rows.forget_before(AT + timedelta(days=2))
    assert await rows.read(0, 10) == batch[1:]


async def test_usage_of_one_minute_adds_up(database):
    rows = UsageRows(database)
    key = UsageKey(AT, "m", "k", "r", "ok")
    row = UsageRow(key=key, requests=1, prompt_tokens=5, completion_tokens=2, estimated=0)
    await rows.write([row])
    await rows.write([row])
    async with database.begin() as connection:
        found = (
            await connection.exec_driver_sql("SELECT requests, prompt_tokens FROM usage")
        ).all()
    assert found == [(2, 10)]


async def test_the_term_rises_with_every_start_and_above_what_an_agent_saw(database):
    first = ServerTerm(TermRows(database), SeededIds(1))
    await first.begin()
    second = ServerTerm(TermRows(database), SeededIds(2))
    await second.begin()
    assert second.term.counter == first.term.counter + 1
    await second.lift_above(Term(counter=40, leader_id="another"))
    assert second.term.counter == 41
    await second.lift_above(second.term)
    assert second.term.counter == 41
    third = ServerTerm(TermRows(database), SeededIds(3))
    await third.begin()
    assert third.term.counter == 42


async def test_two_servers_never_share_one_file(database, tmp_path):
    with pytest.raises(LlmgwError) as caught:
        await Database.open(sqlite_url(tmp_path))
    assert caught.value.code == "conflict"


async def test_a_damaged_file_is_refused_and_left_as_it_is(tmp_path):
    file = tmp_path / "llmgw.db"
    file.write_bytes(b"this is no database, whatever its name says" * 100)
    before = file.read_bytes()
    with pytest.raises(LlmgwError) as caught:
        await Database.open(sqlite_url(tmp_path))
    assert caught.value.code == "unavailable"
    assert file.read_bytes() == before


async def test_a_schema_from_the_future_is_refused(tmp_path):
    await (await Database.open(sqlite_url(tmp_path))).close()
    with sqlite3.connect(tmp_path / "llmgw.db") as connection:
        connection.execute("UPDATE alembic_version SET version_num = '9999'")
    connection.close()
    with pytest.raises(LlmgwError) as caught:
        await Database.open(sqlite_url(tmp_path))
    assert "newer than this program" in caught.value.message


async def test_the_tables_are_those_of_the_migrations(database):
    from alembic.autogenerate import compare_metadata
    from alembic.runtime.migration import MigrationContext

    from llmgw_server.store.tables import metadata

    def differences(connection):
        return compare_metadata(MigrationContext.configure(connection), metadata)

    async with database.begin() as connection:
        assert await connection.run_sync(differences) == []


WRITER = """
import asyncio, os, sys
from datetime import UTC, datetime
from llmgw_server.catalog.revisions import Revision
from llmgw_server.store.database import Database
from llmgw_server.store.rows import RevisionRows

async def main():
    rows = RevisionRows(await Database.open(sys.argv[1]))
    number = 0
    while True:
        number += 1
        at = datetime.now(UTC)
        await rows.add(Revision(number=number, text="t", at=at, actor="a", changes=1))
        print(number, flush=True)

asyncio.run(main())
"""


@pytest.mark.parametrize("after", [1, 7, 30])
def test_what_was_acknowledged_survives_a_kill_at_any_moment(tmp_path, after):
    url = sqlite_url(tmp_path)
    program = textwrap.dedent(WRITER)
    writer = subprocess.Popen([sys.executable, "-c", program, url], stdout=subprocess.PIPE)
    assert writer.stdout is not None
    acknowledged = [int(writer.stdout.readline()) for _ in range(after)][-1]
    writer.send_signal(signal.SIGKILL)
    rest, _ = writer.communicate()
    acknowledged = max([acknowledged, *map(int, rest.split())])

    async def read_back():
        database = await Database.open(url)
        latest = await RevisionRows(database).latest()
        await database.close()
        return latest

    latest = asyncio.run(read_back())
    assert latest is not None
    assert latest.number >= acknowledged


async def test_a_server_that_starts_again_has_catalog_keys_and_nodes(tmp_path):
    text = "engines: [{name: e, kind: simulated}]\nmodels: []\n"
    async with running_server(tmp_path) as (app, key):
        await app.catalog.apply(text, actor="t")
        token = (await app.enrollment.create_token(ttl_s=60, uses=1, labels={}))[1]
        joined = await app.enrollment.join(
            token=token, node_name="n1", instance_id="i", addresses=("127.0.0.1",)
        )
    async with running_server(tmp_path) as (app, second_key):
        assert second_key is None
        assert app.catalog.number == 1
        assert await app.enrollment.authenticate(joined.credential) == joined.node_id
        assert await app.enrollment.authenticate("llmgw-node-wrong") is None
        async with client_of(app, key) as client:
            assert (await client.get("/api/v1/nodes/n1")).json()["state"] == "expected"
            assert (await client.get("/v1/models")).status_code == 200


async def test_a_bootstrap_key_and_token_from_files_work_and_a_bad_key_is_refused(tmp_path):
    from llmgw_common.api_keys import mint_key

    key_file, token_file = tmp_path / "key", tmp_path / "token"
    key = mint_key()
    key_file.write_text(key + "\n")
    token_file.write_text("a-long-shared-token\n")
    files = {"bootstrap_admin_key_file": key_file, "bootstrap_join_token_file": token_file}
    async with running_server(tmp_path, **files) as (app, shown):
        assert shown is None
        assert app.keys.find(key).role == "admin"
        for name in ("a", "b"):
            await app.enrollment.join(
                token="a-long-shared-token", node_name=name, instance_id="", addresses=("10.0.0.1",)
            )
    other = tmp_path / "other"
    other.mkdir()
    key_file.write_text("password")
    with pytest.raises(LlmgwError) as caught:
        async with running_server(other, **files):
            pass
    assert caught.value.code == "invalid_config"


async def test_a_migration_that_is_cut_off_leaves_nothing_half_done(tmp_path, monkeypatch):
    from llmgw_server.store import database as module

    real = module._migrate

    def cut_off(connection):
        real(connection)
        raise LlmgwError("internal", "cut off")

    monkeypatch.setattr(module, "_migrate", cut_off)
    with pytest.raises(LlmgwError, match="cut off"):
        await Database.open(sqlite_url(tmp_path))
    monkeypatch.undo()
    database = await Database.open(sqlite_url(tmp_path))
    assert await RevisionRows(database).latest() is None
    await database.close()
