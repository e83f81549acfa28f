"""A container engine for the test: the one that runs, else one of its own that it ends again.

Rule 1: a daemon that was there before is used and left alone.
Rule 2: what is started here is ended by its pid, and its bridge and data folder are removed.
Rule 3: an image that can be pulled is pulled; the stand-in is only for machines without a registry.
"""

import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

CACHE = Path(__file__).resolve().parents[3] / ".cache" / "e2e-compose"
_PACKAGES = ("docker.io", "docker-compose")
_BRIDGE = Path("/sys/class/net/docker0")
_CERTIFICATES = Path("/etc/ssl/certs/ca-certificates.crt")


class CannotRunError(Exception):
    """This machine cannot run containers; says why and what would help."""


class ContainerEngine:
    """`docker` and `docker compose` against one daemon."""

    def __init__(self, environment: dict[str, str], build_options: Sequence[str] = ()) -> None:
        self.environment = environment
        self._build_options = tuple(build_options)
        plugin = self._succeeds("docker", "compose", "version")
        self._compose = ("docker", "compose") if plugin else ("docker-compose",)
        if not plugin and shutil.which("docker-compose") is None:
            raise CannotRunError("there is neither `docker compose` nor docker-compose")

    def docker(self, *arguments: str) -> str:
        """Run docker and return what it prints."""
        return _output(("docker", *arguments), self.environment)

    def build(self, dockerfile: str, tag: str, arguments: dict[str, str], context: Path) -> None:
        """Build an image."""
        options = [f"--build-arg={name}={value}" for name, value in arguments.items()]
        self.docker(
            "build", *self._build_options, *options, "-f", dockerfile, "-t", tag, str(context)
        )

    def compose(self, file: Path, project: str, settings: dict[str, str], *arguments: str) -> str:
        """Run docker compose on a file, with variables for it."""
        argv = (*self._compose, "-f", str(file), "-p", project, *arguments)
        return _output(argv, self.environment | settings)

    def has_image(self, image: str) -> bool:
        """Say whether the image is there or can be pulled."""
        there = self._succeeds("docker", "image", "inspect", image)
        return there or self._succeeds("docker", "pull", "--quiet", image)

    def _succeeds(self, *argv: str) -> bool:
        done = subprocess.run(argv, env=self.environment, capture_output=True, check=False)
        return done.returncode == 0


@contextmanager
def container_engine() -> Iterator[ContainerEngine]:
    """Give a container engine, and leave the machine as it was (but for installed packages).

    Raises:
        CannotRunError: there is none and none can be started.
    """
    environment = dict(os.environ)
    if shutil.which("docker") and _answers(environment):
        yield ContainerEngine(environment)
        return
    if os.geteuid() != 0 or sys.platform != "linux":
        raise CannotRunError("no docker daemon answers, and only root on Linux can start one")
    _install("dockerd", _PACKAGES)
    with _own_daemon(environment) as own:
        # There is no NAT for its containers, so builds use the host's network.
        yield ContainerEngine(own, ("--network", "host"))


def stand_in(engine: ContainerEngine, image: str) -> None:
    """Make an image with Python from Debian's archive where `image` cannot be had.

    Raises:
        CannotRunError: it cannot be made here.
    """
    archive = CACHE / "base.tar"
    if not archive.exists():
        _install("mmdebstrap", ("mmdebstrap",))
        CACHE.mkdir(parents=True, exist_ok=True)
        staged = CACHE / "base.new.tar"
        include = "--include=python3,python3-venv,ca-certificates"
        _output(("mmdebstrap", "--variant=minbase", include, "bookworm", str(staged)))
        staged.rename(archive)
    engine.docker("import", str(archive), image)
    with tempfile.TemporaryDirectory() as folder:
        shutil.copyfile(_CERTIFICATES, Path(folder, "ca.crt"))
        lines = (
            f"FROM {image}",
            f"COPY ca.crt {_CERTIFICATES}",
            f"ENV SSL_CERT_FILE={_CERTIFICATES} PIP_CERT={_CERTIFICATES}",
        )
        Path(folder, "Dockerfile").write_text("\n".join(lines))
        engine.build(str(Path(folder, "Dockerfile")), image, {}, Path(folder))


@contextmanager
def _own_daemon(environment: dict[str, str]) -> Iterator[dict[str, str]]:
    had_bridge = _BRIDGE.exists()
    folder = Path(tempfile.mkdtemp(prefix="llmgw-docker-"))
    socket = f"unix://{folder}/docker.sock"
    argv = (
        "dockerd",
        "--iptables=false",
        "--ip6tables=false",
        f"--data-root={folder}/data",
        f"--exec-root={folder}/run",
        f"--pidfile={folder}/pid",
        f"--host={socket}",
    )
    with (folder / "log").open("wb") as log:
        daemon = subprocess.Popen(argv, stdout=log, stderr=log)
    own = environment | {"DOCKER_HOST": socket}
    try:
        deadline = time.monotonic() + 30
        while not _answers(own):
            if daemon.poll() is not None or time.monotonic() > deadline:
                last = (folder / "log").read_text(errors="replace")[-2000:]
                raise CannotRunError(f"dockerd does not start here:\n{last}")
            time.sleep(0.2)
        yield own
    finally:
        daemon.terminate()
        try:
            daemon.wait(30)
        except subprocess.TimeoutExpired:
            daemon.kill()
            daemon.wait()
        if not had_bridge and _BRIDGE.exists():
            subprocess.run(("ip", "link", "delete", "docker0"), check=False)
        for mount in _mounts_under(folder):
            subprocess.run(("umount", mount), check=False)
        shutil.rmtree(folder)


def _mounts_under(folder: Path) -> list[str]:
    """Return what the daemon left mounted, innermost first."""
    points = [line.split()[1] for line in Path("/proc/mounts").read_text().splitlines()]
    return sorted((point for point in points if point.startswith(f"{folder}/")), reverse=True)


def _answers(environment: dict[str, str]) -> bool:
    argv = ("docker", "info", "--format", "{{.ServerVersion}}")
    done = subprocess.run(argv, env=environment, capture_output=True, check=False, timeout=30)
    return done.returncode == 0 and bool(done.stdout.strip())


def _install(program: str, packages: Sequence[str]) -> None:
    if shutil.which(program):
        return
    if shutil.which("apt-get") is None:
        raise CannotRunError(f"there is no {program}, and no apt-get to install it with")
    print(f"installing {' '.join(packages)} (Debian packages; they stay)", flush=True)
    quiet = dict(os.environ) | {"DEBIAN_FRONTEND": "noninteractive", "RUNLEVEL": "1"}
    _output(("apt-get", "update", "-q"), quiet)
    _output(("apt-get", "install", "-q", "-y", "--no-install-recommends", *packages, "tini"), quiet)


def _output(argv: Sequence[str], environment: dict[str, str] | None = None) -> str:
    done = subprocess.run(
        argv,
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        errors="replace",
        check=False,
    )
    if done.returncode:
        shown = " ".join(argv[:6])
        raise RuntimeError(f"{shown} ... ended with {done.returncode}:\n{done.stdout[-4000:]}")
    return done.stdout
