"""The processor's energy, where the kernel lets it be read.

Linux's powercap interface (Documentation/power/powercap/powercap.rst): each zone has `name`,
`energy_uj`, a counter in microjoules that wraps at `max_energy_range_uj`. Reading it may need root.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Self

POWERCAP = Path("/sys/class/powercap")


@dataclass(slots=True)
class _Package:
    """One processor package; its cores and memory are zones inside of it."""

    counter: Path
    range_uj: int
    last_uj: int
    used_uj: int = 0

    def read(self) -> int:
        """Microjoules since it was found; a counter that went back has wrapped once, and one that
        can no longer be read stands still."""
        try:
            now_uj = _number(self.counter)
        except (OSError, ValueError):
            return self.used_uj
        self.used_uj += (now_uj - self.last_uj) % self.range_uj
        self.last_uj = now_uj
        return self.used_uj


class EnergyMeter:
    """Energy of all packages since it was made. To be read more often than the counters wrap,
    which takes them some minutes at least. Not thread-safe."""

    def __init__(self, packages: list[_Package]) -> None:
        self._packages = packages

    @classmethod
    def of_this_machine(cls, powercap: Path = POWERCAP) -> Self | None:
        """None where there is no counter that may be read."""
        try:
            packages = [
                _Package(zone / "energy_uj", _range_uj(zone), _number(zone / "energy_uj"))
                for zone in sorted(powercap.glob("intel-rapl:*"))
                if (zone / "name").read_text().startswith("package")
            ]
        except (OSError, ValueError):
            return None
        return cls(packages) if packages else None

    def joules(self) -> float:
        return sum(package.read() for package in self._packages) / 1e6


def _range_uj(zone: Path) -> int:
    """The counter takes this many values."""
    return _number(zone / "max_energy_range_uj") + 1


def _number(file: Path) -> int:
    return int(file.read_text())
