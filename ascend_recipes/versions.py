"""Versions of Python packages, CANN and drivers on one scale."""

import re

from packaging.specifiers import SpecifierSet
from packaging.version import InvalidVersion, Version

_NUMBERED_CANDIDATE = re.compile(r"(rc\d+)\.(\d+)", re.IGNORECASE)


def parse_version(text: str | None) -> Version | None:
    """A version as it is compared; none where the text is none.

    Drivers count below their candidates, as in `25.3.rc1.2`: that comes after `25.3.rc1`.
    """
    if text is None:
        return None
    try:
        return Version(_NUMBERED_CANDIDATE.sub(r"\1.post\2", text.strip()))
    except InvalidVersion:
        return None


def in_range(text: str | None, wanted: str) -> bool | None:
    """Whether a version is in a range of package metadata; none where it is not known.

    Candidates count as versions of their own: `0.23.0rc1` is not in `>=0.23.0`.
    """
    version = parse_version(text)
    return None if version is None else SpecifierSet(wanted).contains(version, prereleases=True)


def older(text: str | None, than: str) -> bool:
    """Whether a version is known and older than another."""
    version, other = parse_version(text), parse_version(than)
    return version is not None and other is not None and version < other


def same_version(text: str, wanted: str) -> bool:
    """Whether two versions are the same release, candidate or post-release.

    What follows a plus says how a package was built (`+cpu`); it counts where it is wanted.
    """
    version, other = parse_version(text), parse_version(wanted)
    if version is None or other is None:
        return text == wanted
    if other.local:
        return version == other
    return Version(version.public) == Version(other.public)
