"""Starts `ascend-run` as people do, on the tiny model, and looks at what is left of it."""

import os
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

from ascend_recipes.launch.process import process_table
from tests.documents import conforming

TINY = ("recipe=qwen3_5_27b_a2", "device=emulated", "scale=tiny")
READY_SECONDS = 300
END_SECONDS = 90


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def environment(**more: str) -> dict[str, str]:
    # Two cores for everything: more threads than that only wait for each other.
    return {**os.environ, "OMP_NUM_THREADS": "1", **more}


class Launcher:
    """One `ascend-run serve`, its output, and the processes of its session."""

    def __init__(self, folder: Path, *words: str, **env: str) -> None:
        self.port = free_port()
        self.url = f"http://127.0.0.1:{self.port}/v1"
        self._stdout, self._stderr = folder / "stdout", folder / "stderr"
        command = [
            sys.executable,
            "-c",
            "import sys; from ascend_recipes.cli.main import main; sys.exit(main())",
        ]
        words = ("serve", "--json", *TINY, f"serving.port={self.port}", *words)
        with self._stdout.open("w") as out, self._stderr.open("w") as err:
            self.process = subprocess.Popen(
                [*command, *words], stdout=out, stderr=err, env=environment(**env)
            )

    def wait_until_ready(self) -> dict:
        """The document that says where the server listens."""
        deadline = time.monotonic() + READY_SECONDS
        while time.monotonic() < deadline:
            if text := self._stdout.read_text():
                return conforming(text)
            assert self.process.poll() is None, self.stderr
            time.sleep(0.2)
        raise AssertionError(f"not ready in time: {self.stderr}")

    def wait(self) -> int:
        """Exit status of the launcher."""
        return self.process.wait(END_SECONDS)

    @property
    def stderr(self) -> str:
        return self._stderr.read_text()

    @property
    def document(self) -> dict:
        """The one document on stdout."""
        return conforming(self._stdout.read_text())

    def descendants(self) -> set[int]:
        """Pids below the launcher, whatever session they are in."""
        table = process_table()
        found = {self.process.pid}
        while more := {item.pid for item in table if item.parent in found} - found:
            found |= more
        return found - {self.process.pid}

    def end(self) -> None:
        """For a test that failed half way."""
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGTERM)
            self.process.wait(END_SECONDS)


def still_there(pids: set[int]) -> set[int]:
    """Which of these processes exist, zombies included."""
    return pids & {record.pid for record in process_table()}
