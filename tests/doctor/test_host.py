"""What a real machine answers, where a test can know it."""

import json
import os
import resource
import shutil
import stat
import sys

import pytest

from ascend_recipes.doctor import host
from ascend_recipes.doctor.host import Host, Plugin, Ran


def test_a_command_that_is_not_there():
    assert host.run_command(("no-such-command-here",)) is None


def test_a_command_that_fails_says_so_with_both_streams():
    script = "import sys; print('out'); print('err', file=sys.stderr); sys.exit(7)"
    ran = host.run_command((sys.executable, "-c", script))
    assert ran.status == 7
    assert {"out", "err"} <= set(ran.output.split())


def test_a_command_that_hangs_is_given_up(monkeypatch):
    monkeypatch.setattr(host, "_SECONDS", 0.2)
    ran = host.run_command((sys.executable, "-c", "import time; time.sleep(30)"))
    assert ran == Ran(124, "no answer within 0 s")


def test_a_command_that_is_no_program(tmp_path):
    broken = tmp_path / "npu-smi"
    broken.write_bytes(b"\x7fELF\0")
    broken.chmod(broken.stat().st_mode | stat.S_IXUSR)
    assert host.run_command((str(broken),)).status == 126


def test_space_is_that_of_the_nearest_folder(tmp_path):
    here = shutil.disk_usage(tmp_path)
    space = host.space_at(tmp_path / "not" / "there")
    assert space.total == here.total
    assert abs(space.free - here.free) < 10**9


@pytest.mark.parametrize(
    ("name", "kind"),
    [("nofile", resource.RLIMIT_NOFILE), ("nproc", resource.RLIMIT_NPROC)],
)
def test_limits_are_the_hard_ones(monkeypatch, name, kind):
    monkeypatch.setattr(resource, "getrlimit", lambda asked: (1, 4096 if asked == kind else 0))
    assert host.hard_limit(name) == 4096
    monkeypatch.setattr(resource, "getrlimit", lambda _: (1, resource.RLIM_INFINITY))
    assert host.hard_limit(name) is None


def test_our_own_plugins_are_seen():
    found = host.plugins_here()
    for group in ("vllm.platform_plugins", "vllm.general_plugins"):
        assert Plugin(group, "ascend_recipes", "ascend-recipes") in found


def test_packages_are_those_beside_the_executable(tmp_path):
    """Another environment's `vllm` is asked through the interpreter of its first line."""
    versions = {"vllm": "0.27.1", "torch": "2.10.0"}
    python = tmp_path / "python"
    python.write_text(f"#!/bin/sh\necho '{json.dumps(versions)}'\n")
    executable = tmp_path / "vllm"
    executable.write_text(f"#!{python}\n")
    for path in (python, executable):
        path.chmod(0o755)
    machine = host.versions_here(Host(environ={"PATH": str(tmp_path)}))
    assert (machine.vllm, machine.torch) == ("0.27.1", "2.10.0")


def test_files_are_read_below_the_root(tmp_path):
    (tmp_path / "etc").mkdir()
    (tmp_path / "etc" / "name").write_text("ascend\n")
    here = Host(root=tmp_path, environ={})
    assert here.read("/etc/name") == "ascend\n"
    assert here.read("/etc/other") is None
    assert here.names("/etc") == ("name",)
    assert here.names("/nowhere") == ()
    assert here.exists("/etc/name")
    assert not here.exists(os.devnull)
