"""The agent's composition root: what it is made of, and in which order it starts and ends."""

import asyncio
import fcntl
import hashlib
import os
import signal
import socket
from pathlib import Path
from urllib.parse import urlsplit

import structlog

from llmgw_agent import __version__
from llmgw_agent.channel.commands import Commands
from llmgw_agent.channel.connection import Connection, Me, Reports
from llmgw_agent.channel.credential import Identity
from llmgw_agent.engines.installs import Installs
from llmgw_agent.inventory.facts import Inventory
from llmgw_agent.settings import AgentSettings
from llmgw_agent.supervisor.record import Records
from llmgw_agent.supervisor.supervisor import Supervisor
from llmgw_agent.supervisor.task import Surroundings
from llmgw_agent.weights.store import WeightsStore
from llmgw_common.addresses import is_loopback
from llmgw_common.clock import SystemClock
from llmgw_common.errors import LlmgwError
from llmgw_common.mint import RandomIds
from llmgw_common.protocol.facts import ShardReport
from llmgw_common.protocol.messages import Heartbeat, Register, ShardStateEvent

log = structlog.get_logger(__name__)


class Agent:
    """Everything of one agent, wired."""

    def __init__(self, settings: AgentSettings) -> None:
        folder = _own_folder(settings.data_dir)
        settings = settings.model_copy(update={"data_dir": folder})
        self._settings = settings
        self._lock = _lock(folder)
        clock, ids = SystemClock(), RandomIds()
        node_name = settings.node_name or socket.gethostname()
        address = settings.address or _own_address(settings.server)
        self._ids = ids
        self._instance_id = ids.new("ins")

        self._inventory = Inventory(settings, node_name, (address,), clock)
        self._weights = WeightsStore(folder / "weights", settings.allow)
        self._supervisor = Supervisor(
            Surroundings(
                installs=Installs(folder / "engines", settings.allow),
                weights=self._weights,
                records=Records(folder / "shards"),
                allow=settings.allow,
                clock=clock,
                host=address,
                band=settings.port_band,
                logs=folder / "logs",
                keys=folder / "keys",
                agent=hashlib.sha256(str(folder).encode()).hexdigest()[:12],
                taken_ports=set,
            ),
            self._tell,
        )
        self._connection = Connection(
            settings,
            Identity(folder),
            Reports(register=self._register, heartbeat=self._heartbeat),
            clock,
            Me(node_name=node_name, instance_id=self._instance_id, addresses=(address,)),
        )
        self._connection.commands = Commands(self._supervisor, self._weights, self._connection.send)

    async def run(self) -> None:
        """Run until SIGTERM or SIGINT; engines outlive the agent unless the settings say not."""
        stop = asyncio.Event()
        loop = asyncio.get_running_loop()
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, stop.set)
        await self._supervisor.adopt()
        channel = asyncio.create_task(self._connection.run(), name="channel")
        stopping = asyncio.create_task(stop.wait(), name="stop")
        log.info("agent started", version=__version__, server=self._settings.server)
        try:
            await asyncio.wait({channel, stopping}, return_when=asyncio.FIRST_COMPLETED)
            if channel.done():
                channel.result()
        finally:
            await self._end(channel)
            stopping.cancel()

    async def _end(self, channel: asyncio.Task[None]) -> None:
        # The channel ends first: a server that saw the engines stop would place them here again.
        await self._connection.say_going("the agent was told to end")
        channel.cancel()
        await asyncio.gather(channel, return_exceptions=True)
        if self._settings.stop_engines_on_exit:
            await self._supervisor.stop_all(self._settings.stop_grace)
        await self._supervisor.let_go()
        await self._weights.close()
        await self._inventory.close()
        os.close(self._lock)
        log.info("agent ended")

    def _tell(self, report: ShardReport) -> None:
        self._connection.send(ShardStateEvent(id=self._ids.new("msg"), shard=report))

    async def _register(self) -> Register:
        return Register(
            id=self._ids.new("msg"),
            agent_version=__version__,
            instance_id=self._instance_id,
            node=await self._inventory.node_facts(),
            weights=await asyncio.to_thread(self._weights.present),
            shards=self._supervisor.reports(),
            epochs_seen=self._supervisor.epochs_seen(),
        )

    async def _heartbeat(self, sequence: int) -> Heartbeat:
        return Heartbeat(
            id=self._ids.new("msg"),
            sequence=sequence,
            shards=self._supervisor.reports(),
            node=await self._inventory.node_facts(),
        )


def _own_folder(path: Path) -> Path:
    """Return the agent's data folder, made if need be, readable by its user only."""
    folder = path.expanduser().resolve()
    folder.mkdir(parents=True, exist_ok=True, mode=0o700)
    return folder


def _lock(folder: Path) -> int:
    """Take the data folder for this process alone.

    Raises:
        LlmgwError: `conflict`, another agent has it.
    """
    descriptor = os.open(folder / "lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError as error:
        os.close(descriptor)
        raise LlmgwError("conflict", f"another agent runs with data_dir {folder}") from error
    return descriptor


def _own_address(server: str) -> str:
    """Return the address from which this machine reaches the server (no packet is sent)."""
    parts = urlsplit(server)
    host = parts.hostname or "127.0.0.1"
    if is_loopback(host):
        return "127.0.0.1"
    family, kind, _, _, target = socket.getaddrinfo(
        host, parts.port or 443, type=socket.SOCK_DGRAM
    )[0]
    with socket.socket(family, kind) as probe:
        probe.connect(target)
        return str(probe.getsockname()[0])
