"""A service in a process of its own: started, measured, killed, and started again."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path

import psutil

from lavps.apps.service import Client

REPLICAS = {"desk": "ServeReplica:lavps:desk", "sampler": "ServeReplica:lavps:sampler"}
_PATIENCE = 900.0  # seconds until a service must be healthy


class RunningService:
    """``lavps serve`` on a free port of 127.0.0.1.

    Args:
        prior: Folder of the prior, served as the model "tiny".
        spool: Folder of the job store; the log lies beside the prior.
        ray: Whether to run on Ray Serve, or in one process.
        options: Further words of the command line.
    """

    def __init__(self, prior: Path, spool: Path, ray: bool, *options: object) -> None:
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            port = free.getsockname()[1]
        self.ray, self.spool, self._log = ray, spool, prior.with_name("log")
        self.client = Client(f"http://127.0.0.1:{port}", timeout=60.0)
        words = ["--models", f"tiny={prior}", "--port", port, "--spool", spool, "--device", "cpu"]
        words += ["--workers", int(ray), *options]
        self._command = [sys.executable, "-m", "lavps.cli", "serve", *map(str, words)]
        self.start()

    def start(self) -> None:
        """Start the process and wait until it is healthy."""
        with self._log.open("ab") as log:
            environment = os.environ | {"OMP_NUM_THREADS": "1", "RAY_worker_niceness": "0"}
            self.process = psutil.Popen(self._command, stdout=log, stderr=log, env=environment)
        end = time.monotonic() + _PATIENCE
        while not self.client.healthy():
            if self.process.poll() is not None or time.monotonic() > end:
                raise RuntimeError(self._log.read_text()[-2000:])
            time.sleep(0.2)

    def stop(self) -> None:
        """End the process as Ctrl-C does, and its children with it."""
        children = self.process.children(recursive=True)
        self.process.send_signal(signal.SIGINT)
        with suppress(subprocess.TimeoutExpired, psutil.TimeoutExpired):
            self.process.wait(60)
        for process in (self.process, *children):
            with suppress(psutil.Error):
                process.kill()

    def processes(self) -> dict[str, psutil.Process]:
        """Return the processes that hold models and jobs, by name."""
        if not self.ray:
            return {"service": self.process}
        found = {}
        for process in self.process.children(recursive=True):
            with suppress(psutil.Error):  # it has ended
                title = " ".join(process.cmdline())
                found |= {name: process for name, words in REPLICAS.items() if words in title}
        return found

    def resident(self) -> float:
        """Return the resident memory of these processes in MiB."""
        total = 0
        for process in self.processes().values():
            with suppress(psutil.Error):
                total += process.memory_info().rss
        return total / 2**20

    def peak(self) -> float:
        """Return the largest resident memory that one of these processes ever had, in MiB."""
        peaks = [0.0]
        for process in self.processes().values():
            lines = Path(f"/proc/{process.pid}/status").read_text().splitlines()
            peaks += [int(line.split()[1]) / 1024 for line in lines if line.startswith("VmHWM")]
        return max(peaks)

    def kill(self, name: str) -> None:
        """Kill one of these processes; without Ray, start the service again."""
        with suppress(psutil.Error, KeyError):
            self.processes()[name].kill()
        if not self.ray:
            self.process.wait()
            self.start()
