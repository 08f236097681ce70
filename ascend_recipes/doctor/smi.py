"""Reads the table that `npu-smi info` prints.

Two lines a die: card, chip name, health and power; then the die's number, bus address and memory.
Columns differ over drivers and products (A3 adds `Phy-ID`, 310P `Device` and no HBM), so cells are
told by what they hold. Formats: vllm-ascend issues 152, 2035, 2698, 3010, 12980 (npu-smi 24.1 to
26.0 on A2 and A3), nvtop issue 421 (310P).
"""

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise

_VERSION = re.compile(r"npu-smi\s+(\S+)\s+Version:\s*(\S+)")
_CARD = re.compile(r"(\d+)\s+([A-Za-z0-9]*[A-Za-z_][\w.-]*)")
_BUS = re.compile(r"[0-9A-Fa-f]{4,8}:[0-9A-Fa-f]{2}:[0-9A-Fa-f]{2}\.[0-9A-Fa-f]|NA")
_USAGE = re.compile(r"(\d+)\s*/\s*(\d+)")
_DIGITS = re.compile(r"\d+(?:\s+\d+)?")
_TWO_DIE_NAME = "ascend910"
"""What a card of two dies calls its chips; its dies are those of the 910C."""
_TWO_DIE_SOC = "910c"


@dataclass(frozen=True)
class Die:
    """One device as software counts them."""

    card: int
    number: int
    """Number of the device: as software counts where the table tells it, else in order."""
    name: str
    """Chip, for example `910B3`."""
    health: str
    """OK, Warning, Alarm, Critical or UNKNOWN."""
    used_mb: int
    total_mb: int


@dataclass(frozen=True)
class SmiReport:
    """The table."""

    version: str
    """Of the tool, which is the driver's."""
    dies: tuple[Die, ...]
    holders: tuple[tuple[int, int, str], ...] = ()
    """Card, process id and process name of whoever uses a die."""

    @property
    def soc(self) -> str | None:
        """Name of the chip as the registry's hardware rows know it."""
        if not self.dies:
            return None
        name = self.dies[0].name.lower()
        if name == _TWO_DIE_NAME:
            per_card = len(self.dies) / len({die.card for die in self.dies})
            return _TWO_DIE_SOC if per_card > 1 else name
        return f"ascend{name}" if name[0].isdigit() else name


@dataclass(frozen=True)
class SmiFault:
    """The tool is there and could not tell anything."""

    status: int
    said: str


def read_smi(status: int, output: str) -> SmiReport | SmiFault:
    """The report, or why there is none."""
    version = _VERSION.search(output)
    rows = [_cells(line) for line in output.splitlines() if line.lstrip().startswith("|")]
    if status or version is None:
        spoken = [line.strip() for line in output.splitlines() if line.strip()]
        return SmiFault(status, " ".join(spoken[-2:]) or "nothing")
    return SmiReport(version[2], tuple(_dies(rows)), tuple(_holders(rows)))


def _cells(line: str) -> tuple[str, ...]:
    return tuple(cell.strip() for cell in line.strip().strip("|").split("|"))


def _dies(rows: Sequence[tuple[str, ...]]) -> Iterator[Die]:
    count = 0
    for first, second in pairwise(rows):
        if len(first) < 3 or len(second) < 3 or not _BUS.fullmatch(second[1]):
            continue
        card, numbers = _CARD.fullmatch(first[0]), _DIGITS.fullmatch(second[0])
        usage = _USAGE.findall(second[2])
        if card is None or numbers is None or not usage:
            continue
        told = second[0].split()
        used, total = usage[-1]
        yield Die(
            card=int(card[1]),
            number=int(told[1]) if len(told) > 1 else count,
            name=card[2],
            health=first[1],
            used_mb=int(used),
            total_mb=int(total),
        )
        count += 1


def _holders(rows: Sequence[tuple[str, ...]]) -> Iterator[tuple[int, int, str]]:
    for row in rows:
        if len(row) >= 4 and row[1].isdigit() and _DIGITS.fullmatch(row[0]):
            yield int(row[0].split()[0]), int(row[1]), row[2]
