"""Versions of packages, CANN and drivers on one scale."""

import pytest

from ascend_recipes.versions import in_range, older, parse_version, same_version

ASCENDING = ["8.1.RC1", "8.3.RC1", "8.3.RC2", "8.5.0", "8.5.1", "9.0.0", "9.1.0"]
DRIVERS = ["24.1.rc3", "25.3.rc1", "25.3.rc1.2", "25.3.0", "25.5.1", "26.0"]


@pytest.mark.parametrize("order", [ASCENDING, DRIVERS], ids=["cann", "driver"])
def test_releases_are_ordered(order):
    for here, first in enumerate(order):
        for there, second in enumerate(order):
            assert older(first, second) is (here < there)


@pytest.mark.parametrize("text", [None, "", "latest", "V100R001C79"])
def test_what_is_no_version_is_older_than_nothing(text):
    assert parse_version(text) is None
    assert not older(text, "9.9")
    assert in_range(text, ">=1") is None


@pytest.mark.parametrize(
    ("version", "span", "inside"),
    [
        ("0.23.0rc1", ">=0.23.0,<0.23.1.dev0", False),
        ("0.23.0", ">=0.23.0,<0.23.1.dev0", True),
        ("0.23.0.post1", ">=0.23.0,<0.23.1.dev0", True),
        ("0.23.1", ">=0.23.0,<0.23.1.dev0", False),
        ("0.26.0", "==0.26.0rc1", False),
        ("0.27.1.dev12+g182b75ea", ">=0.27.1.dev0,<0.27.2.dev0", True),
    ],
)
def test_candidates_are_versions_of_their_own(version, span, inside):
    assert in_range(version, span) is inside


@pytest.mark.parametrize(
    ("found", "wanted", "same"),
    [
        ("2.13.0+cpu", "2.13.0", True),
        ("2.10.0", "2.10.0.post4", False),
        ("2.9.0.post1+git4c901a4", "2.9.0.post1+git4c901a4", True),
        ("2.9.0.post1", "2.9.0.post1+git4c901a4", False),
        ("8.3.RC2", "8.3.rc2", True),
        ("9.1", "9.1.0", True),
        ("nightly", "nightly", True),
        ("nightly", "9.1.0", False),
    ],
)
def test_same_release_built_another_way_is_the_same(found, wanted, same):
    assert same_version(found, wanted) is same
