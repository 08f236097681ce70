"""What a machine has installed: from version files, from the kernel's tables, from a file."""

import json

import pytest

from ascend_recipes.errors import ExitCode, RecipeError
from ascend_recipes.machine import InstalledVersions, read_installed, this_machine

TCP = """  sl  local_address rem_address   st tx_queue rx_queue tr tm->when retrnsmt   uid
   0: 00000000:411A 00000000:0000 0A 00000000:00000000 00:00000000 00000000     0        0 1
   1: 0100007F:1F90 0100007F:C350 01 00000000:00000000 00:00000000 00000000     0        0 2
"""


def write(root, path, text):
    file = root / path
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(text, encoding="utf-8")


@pytest.mark.parametrize(
    ("path", "text", "version"),
    [
        (
            "usr/local/Ascend/ascend-toolkit/latest/aarch64-linux/ascend_toolkit_install.info",
            "package_name=Ascend-cann-toolkit\nversion=8.5.1\ninnerversion=V100R001\n",
            "8.5.1",
        ),
        (
            "usr/local/Ascend/ascend-toolkit/latest/version.cfg",
            "# version: 1.0\ntoolkit_running_version=[9.1.0:toolkit]\n",
            "9.1.0",
        ),
        ("usr/local/Ascend/cann/share/info/runtime/version.info", 'Version="9.1.0"\n', "9.1.0"),
    ],
)
def test_cann_is_read_from_the_files_that_it_leaves(tmp_path, path, text, version):
    write(tmp_path, path, text)
    assert this_machine(tmp_path, {}).cann == version


def test_the_environment_chooses_among_toolkits(tmp_path):
    latest = "usr/local/Ascend/ascend-toolkit/latest/aarch64-linux/ascend_toolkit_install.info"
    write(tmp_path, latest, "version=8.5.1\n")
    write(tmp_path, "opt/cann/x86_64-linux/ascend_toolkit_install.info", "version=9.0.0\n")
    environ = {"ASCEND_HOME_PATH": str(tmp_path / "opt/cann")}
    assert this_machine(tmp_path, environ).cann == "9.0.0"
    assert this_machine(tmp_path, {}).cann == "8.5.1"


def test_driver_devices_and_listening_ports(tmp_path):
    write(tmp_path, "usr/local/Ascend/driver/version.info", "Version=25.5.1\nascendhal=7.35\n")
    write(tmp_path, "usr/local/Ascend/firmware/version.info", "Version=7.8.0.5.216\n")
    write(tmp_path, "proc/net/tcp", TCP)
    for name in ("davinci0", "davinci15", "davinci_manager"):
        write(tmp_path, f"dev/{name}", "")
    found = this_machine(tmp_path, {})
    assert (found.driver, found.hdk, found.firmware) == ("25.5.1", "25.5.1", "7.8.0.5.216")
    assert found.devices == 2
    # 0x411A = 16666 listens; 0x1F90 = 8080 is an established connection.
    assert found.listening_ports == (16666,)


def test_a_machine_without_anything_says_nothing(tmp_path):
    found = this_machine(tmp_path, {})
    assert (found.cann, found.driver, found.devices) == (None, None, None)
    assert found.listening_ports == ()
    assert found.arch


def test_file_and_machine_speak_one_format(tmp_path):
    there = InstalledVersions(cann="9.1.0", listening_ports=(16666,), plugins=("other",), devices=8)
    file = tmp_path / "there.json"
    file.write_text(json.dumps(there.to_json()), encoding="utf-8")
    assert read_installed(file) == there


def test_versions_that_yaml_reads_as_numbers_stay_text(tmp_path):
    file = tmp_path / "there.yaml"
    file.write_text("cann: 9.1\nhdk: 25.5.1\n", encoding="utf-8")
    assert read_installed(file) == InstalledVersions(cann="9.1", hdk="25.5.1")


@pytest.mark.parametrize(
    ("text", "line"),
    [
        ("- vllm\n", 1),
        ("cann: 9.1.0\ncanm: 9.1.0\n", 2),
        ("devices: eight\n", 1),
        ("vllm: [0.23.0]\n", 1),
        ("listening_ports: 80\n", 1),
        ("listening_ports: [http]\n", 1),
    ],
)
def test_a_wrong_file_is_refused_where_it_is_wrong(tmp_path, text, line):
    file = tmp_path / "there.yaml"
    file.write_text(text, encoding="utf-8")
    with pytest.raises(RecipeError) as refused:
        read_installed(file)
    (finding,) = refused.value.findings
    assert finding.id == "machine.invalid_file"
    assert finding.source is not None
    assert finding.source.line == line
    assert refused.value.exit_code is ExitCode.USAGE


def test_a_missing_file_is_a_finding(tmp_path):
    with pytest.raises(RecipeError) as refused:
        read_installed(tmp_path / "nowhere.yaml")
    assert refused.value.findings[0].id == "file.unreadable"
