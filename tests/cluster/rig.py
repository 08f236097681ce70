"""A small environment with a stand-in `vllm`, and launchers that are started in it."""

import json
import os
import signal
import socket
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path

from ascend_recipes.launch.process import is_running, process_table
from ascend_recipes.launch.state import RUN_VARIABLE
from tests.documents import conforming

VERSIONS = {"vllm": "0.27.1", "vllm_ascend": "0.27.1rc1", "torch_npu": "2.10.0.post4"}
SECONDS = 30.0
RUN = (
    sys.executable,
    "-c",
    "import sys; from ascend_recipes.cli.main import main; sys.exit(main())",
)

TWO_NODES = ("recipe=deepseek_v4_pro_a3_2n",)
ONE_NODE = ("recipe=deepseek_v4_a3",)
DISAGGREGATED = ("recipe=qwen3_5_27b_w8a8_a3_2n_pd", "parallel.tp=1", "parallel.dp=2")
# On a hub, so that no file of theirs is looked at here.
SOURCES = {
    model: {variant: {"modelscope": f"lab/{model}", "revision": "v1"}}
    for model, variant in (
        ("deepseek_v4_pro", "w4a8"),
        ("deepseek_v4_flash", "w8a8"),
        ("qwen3_5_27b", "w8a8"),
    )
}


class Place:
    """A machine room in a folder: weights, devices, an environment, a site file."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.records = folder / "standin"
        self._launchers: list[Launcher] = []
        self.port = free_block()
        for name in ("standin", "devices", "site", "cache", "bin"):
            (folder / name).mkdir()
        for number in range(32):
            (folder / "devices" / f"davinci{number}").touch()
        self.behave()
        self._make_environment()
        self.write_site()

    def write_site(self, name: str = "lab", **changes: object) -> None:
        site = {
            "network_interface": "lo",
            "node_addresses": ["127.0.0.1", "127.0.0.2"],
            "port_base": self.port + 50,
            "device_folder": str(self.folder / "devices"),
            "sources": SOURCES,
        } | changes
        text = json.dumps({key: item for key, item in site.items() if item is not None})
        (self.folder / "site" / f"{name}.yaml").write_text(text)

    def behave(self, **behaviour: str) -> None:
        named = {name.replace("_", "-"): word for name, word in behaviour.items()}
        (self.records / "behaviour.json").write_text(json.dumps(named))

    def _make_environment(self) -> None:
        """A virtual environment that consists of an interpreter, metadata and the stand-in."""
        root = self.folder / "env"
        (root / "bin").mkdir(parents=True)
        (root / "bin" / "python").symlink_to(Path(sys.executable).resolve())
        (root / "pyvenv.cfg").write_text(
            f"home = {Path(sys.executable).resolve().parent}\n"
            "include-system-site-packages = false\n"
        )
        python = f"python{sys.version_info.major}.{sys.version_info.minor}"
        for name, version in VERSIONS.items():
            info = root / "lib" / python / "site-packages" / f"{name}-{version}.dist-info"
            info.mkdir(parents=True)
            (info / "METADATA").write_text(f"Name: {name}\nVersion: {version}\n")
        source = (Path(__file__).parent / "standin.py").read_text()
        script = root / "bin" / "vllm"
        script.write_text(f"#!{root / 'bin' / 'python'}\n{source}")
        script.chmod(0o755)
        self.path = f"{root / 'bin'}:/usr/bin:/bin"

    def environment(self, **more: str) -> dict[str, str]:
        kept = {name: text for name, text in os.environ.items() if not name.startswith("VLLM_")}
        return kept | {
            "PATH": self.path,
            "STANDIN_FOLDER": str(self.records),
            "ASCEND_RECIPES_CACHE": str(self.folder / "cache"),
            "OMP_NUM_THREADS": "1",
            **more,
        }

    def launch(self, *words: str, name: str = "launcher", **env: str) -> "Launcher":
        words = ("serve", "--json", "runtime=vllm_ascend", f"serving.port={self.port}", *words)
        named = any(word.startswith("site=") for word in words)
        launcher = Launcher(self, name, (*words, *(() if named else ("site=lab",))), env)
        self._launchers.append(launcher)
        return launcher

    def clear(self) -> set[int]:
        """End what a failed test left; the processes that a launcher left when it had ended."""
        left = self.left_over() - {launcher.process.pid for launcher in self._launchers}
        running = [launcher for launcher in self._launchers if launcher.process.poll() is None]
        for pid in self.left_over():
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        for launcher in running:
            launcher.process.wait(SECONDS)
        return set() if running else left

    def run(self, *words: str) -> dict:
        """Another command of ours, with its document."""
        done = subprocess.run(
            [*RUN, *words, "--json"],
            capture_output=True,
            text=True,
            cwd=self.folder,
            env=self.environment(),
        )
        return conforming(done.stdout)

    @property
    def events(self) -> list[tuple[str, str]]:
        """What stand-ins did, in order: ("started", "prefill-0"), …"""
        path = self.records / "events"
        lines = path.read_text().splitlines() if path.exists() else []
        return [(line.split()[0], line.split()[1]) for line in lines]

    @property
    def requests(self) -> list[dict]:
        path = self.records / "requests"
        return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []

    def record(self, name: str) -> dict:
        return json.loads((self.records / f"{name}.json").read_text())

    def left_over(self) -> set[int]:
        """Processes of any run in this place that still live."""
        return {record.pid for record in process_table() if self._is_ours(record.pid)}

    def _is_ours(self, pid: int) -> bool:
        try:
            environment = Path(f"/proc/{pid}/environ").read_bytes()
        except OSError:
            return False
        marks = (f"{RUN_VARIABLE}={self.folder}", f"STANDIN_FOLDER={self.records}")
        return is_running(pid) and any(mark.encode() in environment for mark in marks)


class Launcher:
    """One `ascend-run serve`, whose answer is one JSON document."""

    def __init__(self, place: Place, name: str, words: tuple[str, ...], env: dict) -> None:
        self._out, self._err = place.folder / f"{name}.out", place.folder / f"{name}.err"
        with self._out.open("w") as out, self._err.open("w") as err:
            self.process = subprocess.Popen(
                [*RUN, *words],
                stdout=out,
                stderr=err,
                cwd=place.folder,
                env=place.environment(**env),
            )

    @property
    def stderr(self) -> str:
        return self._err.read_text()

    @property
    def document(self) -> dict:
        return conforming(self._out.read_text())

    @property
    def findings(self) -> dict[str, str]:
        """Messages of the document's findings, by id."""
        return {item["id"]: item["message"] for item in self.document["findings"]}

    @property
    def folder(self) -> Path:
        """The run folder."""
        return Path(self.stderr.partition("run folder ")[2].splitlines()[0])

    @property
    def state(self) -> dict:
        return json.loads((self.folder / "state.json").read_text())

    def wait_until_ready(self) -> dict:
        wait_for(lambda: self._out.read_text().endswith("}\n") or self.process.poll() is not None)
        assert self.process.poll() is None, self.stderr + self._out.read_text()
        assert self.document["ok"], self._out.read_text()
        return self.document

    def terminate(self) -> int:
        self.process.send_signal(signal.SIGTERM)
        return self.wait()

    def wait(self) -> int:
        return self.process.wait(SECONDS)


def wait_for(condition, seconds: float = SECONDS) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, "waited too long"
        time.sleep(0.02)


def free_block(size: int = 60) -> int:
    """First of consecutive ports that are free on both addresses."""
    for first in range(21000 + os.getpid() % 90 * 100, 32000, 100):
        if all(_is_free(first + offset) for offset in range(size)):
            return first
    raise AssertionError("no free ports")


def _is_free(port: int) -> bool:
    for address in ("127.0.0.1", "127.0.0.2"):
        with socket.socket() as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            try:
                probe.bind((address, port))
            except OSError:
                return False
    return True
