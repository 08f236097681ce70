"""What a start is doing, read from vLLM's log."""

import re
from pathlib import Path
from typing import Protocol

STAGES = ("compose", "plan", "load", "cache", "ready")
"""Stages of a start in their order, as shown to people."""

_TO_CACHE = re.compile(r"Model loading took")
_TO_READY = re.compile(r"init engine \(profile, create kv cache, warmup model\) took")

_DETAILS = (
    (re.compile(r"Starting to load model (\S+?)\.\.\."), "model {0}"),
    (re.compile(r"Loading safetensors checkpoint shards:\s+(\d+)% "), "weights {0} %"),
    (re.compile(r"Loading weights took ([\d.]+) seconds"), "weights read in {0} s"),
    (re.compile(r"KV cache size: ([\d,]+) tokens"), "cache of {0} tokens"),
    (re.compile(r"Capturing .*?:\s+(\d+)%"), "graphs {0} %"),
    (re.compile(r"Graph capturing finished in (\d+) secs"), "graphs captured in {0} s"),
)
"""Log lines worth showing, and how. Wording of vLLM 0.32."""


class StageListener(Protocol):
    """Shows stages to people."""

    def begin(self, stage: str) -> None:
        """A stage begins; the one before it has ended."""

    def detail(self, text: str) -> None:
        """Something happened inside the current stage."""

    def end(self) -> None:
        """The last stage has ended."""

    def abandon(self) -> None:
        """The start failed; nothing more will be shown."""


class LogWatcher:
    """Follows a growing log file and reports stages and details."""

    def __init__(self, log: Path, listener: StageListener) -> None:
        self._log = log
        self._listener = listener
        self._position = 0
        self.stage = "load"
        """Stage that the log has reached."""
        listener.begin(self.stage)

    def poll(self) -> None:
        """Read what was written since the last call."""
        with self._log.open("rb") as stream:
            stream.seek(self._position)
            chunk = stream.read()
        # A line that is still being written is read again next time.
        chunk = chunk[: max(chunk.rfind(b"\n"), chunk.rfind(b"\r")) + 1]
        self._position += len(chunk)
        for line in re.split(r"[\r\n]+", chunk.decode("utf-8", errors="replace")):
            self._read(line)

    def _read(self, line: str) -> None:
        if self.stage == "load" and _TO_CACHE.search(line):
            self._begin("cache")
        elif self.stage in ("load", "cache") and _TO_READY.search(line):
            self._begin("ready")
        for pattern, template in _DETAILS:
            if match := pattern.search(line):
                self._listener.detail(template.format(*match.groups()))

    def _begin(self, stage: str) -> None:
        self.stage = stage
        self._listener.begin(stage)
