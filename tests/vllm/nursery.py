"""A process that forks engine hosts, so that what all of them import is imported once.

PyTorch, transformers and what else vLLM needs take a third of an engine's start. Nothing of a plan
is in force here and no module of vLLM is loaded, since that asks for the plan: a host begins with
its own environment, as if it had been started alone.
"""

import atexit
import gc
import importlib
import os
import runpy
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from multiprocessing import Pipe
from multiprocessing.connection import Connection
from multiprocessing.reduction import recv_handle, send_handle
from pathlib import Path
from typing import NoReturn

HOST = Path(__file__).with_name("engine_host.py")
END_SECONDS = 30
SHARED = (
    "torch._dynamo.aot_compile",
    "torch._inductor.lowering",
    "torch._inductor.standalone_compile",
    "transformers.models.auto.image_processing_auto",
    "transformers.models.auto.tokenization_auto",
    *("cv2", "fastapi", "mistral_common", "networkx", "openai", "xgrammar"),
)
"""Packages of others that vLLM imports in every process, the slowest ones."""


class Nursery:
    """Client of such a process."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection

    def start(self, environment: dict[str, str], log: Path, connection: Connection) -> int:
        """Start an engine host that answers on a connection; its process id."""
        self._connection.send(("start", (environment, str(log))))
        send_handle(self._connection, connection.fileno(), 0)
        return int(self._connection.recv())

    def end(self, pid: int) -> None:
        """Wait for a host whose connection is closed; one that stays is killed."""
        self._connection.send(("end", pid))
        self._connection.recv()


@contextmanager
def started_nursery() -> Iterator[Nursery]:
    ours, theirs = Pipe()
    process = subprocess.Popen(
        [sys.executable, __file__, str(theirs.fileno())],
        pass_fds=(theirs.fileno(),),
        env={**os.environ, "OMP_NUM_THREADS": "1"},
        start_new_session=True,
    )
    theirs.close()
    try:
        yield Nursery(ours)
    finally:
        ours.close()
        process.wait()


def main() -> None:
    requests = Connection(int(sys.argv[1]))
    _import_shared()
    # What is here stays: no host needs to look through it for garbage.
    gc.freeze()
    while True:
        try:
            request, value = requests.recv()
        except EOFError:
            os._exit(0)
        if request == "end":
            requests.send(_end(value))
            continue
        handle = recv_handle(requests)
        pid = os.fork()
        if pid == 0:
            requests.close()
            _become_host(*value, handle)
        os.close(handle)
        requests.send(pid)


def _import_shared() -> None:
    from ascend_recipes.torchvision_schemas import define_missing_schemas

    define_missing_schemas()
    for name in SHARED:
        importlib.import_module(name)
    loaded = {name.partition(".")[0] for name in sys.modules}
    assert "vllm" not in loaded, "vLLM asks for a platform, and so for a plan, when it is imported"


def _become_host(environment: dict[str, str], log: str, handle: int) -> NoReturn:
    os.setsid()
    output = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
    os.dup2(output, 1)
    os.dup2(output, 2)
    os.close(output)
    os.environ.clear()
    os.environ.update(environment)
    sys.argv = [str(HOST), str(handle)]
    runpy.run_path(str(HOST), run_name="__main__")
    # What vLLM has registered is ended; to take half a million objects apart would take seconds.
    atexit._run_exitfuncs()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(0)


def _end(pid: int) -> int:
    deadline = time.monotonic() + END_SECONDS
    while time.monotonic() < deadline:
        ended, status = os.waitpid(pid, os.WNOHANG)
        if ended:
            return status
        time.sleep(0.02)
    # A host leads a group: processes of its engine would stay otherwise, gigabytes each.
    os.killpg(pid, signal.SIGKILL)
    return os.waitpid(pid, 0)[1]


if __name__ == "__main__":
    main()
