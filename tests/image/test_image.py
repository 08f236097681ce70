"""Installing into a vendor's image changes nothing there: pip's own resolver is asked.

Nothing is installed. The image is an interpreter beside the metadata of its packages, which is all
that the resolver looks at.
"""

import json
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
IMAGE = Path(__file__).parent / "vllm_ascend_0_23_0.txt"
HEAVY = {"vllm", "vllm-ascend", "torch", "torch-npu", "transformers", "triton", "triton-ascend"}
OURS = {"hydra-core", "omegaconf", "antlr4-python3-runtime"}
"""What an image lacks and we bring."""

pytestmark = pytest.mark.registry


def base_requirements():
    tree = tomllib.loads((ROOT / "pyproject.toml").read_text())
    return list(dict.fromkeys(tree["project"]["dependencies"]))


def pinned():
    lines = (line.partition("#")[0].strip() for line in IMAGE.read_text().splitlines())
    return dict(line.split("==") for line in lines if line)


class Image:
    def __init__(self, folder, packages):
        self.python = folder / "bin" / "python"
        self.python.parent.mkdir(parents=True)
        self.python.symlink_to(Path(sys.executable).resolve())
        (folder / "pyvenv.cfg").write_text(
            f"home = {Path(sys.executable).resolve().parent}\n"
            "include-system-site-packages = false\n"
        )
        python = f"python{sys.version_info.major}.{sys.version_info.minor}"
        for name, version in packages.items():
            stem = f"{name.replace('-', '_')}-{version}"
            info = folder / "lib" / python / "site-packages" / f"{stem}.dist-info"
            info.mkdir(parents=True)
            head = f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n"
            (info / "METADATA").write_text(head)
            (info / "RECORD").write_text("")

    def changes(self, *requirements):
        """Name and version of everything that an installation would bring or replace."""
        command = [sys.executable, "-m", "pip", "--python", str(self.python), "install"]
        flags = ["--dry-run", "--quiet", "--disable-pip-version-check", "--report", "-"]
        done = subprocess.run(
            [*command, *flags, *requirements], capture_output=True, text=True, timeout=300
        )
        assert done.returncode == 0, done.stderr
        items = (item["metadata"] for item in json.loads(done.stdout)["install"])
        return {item["name"].lower().replace("_", "-"): item["version"] for item in items}


def test_base_package_changes_nothing_of_the_image(tmp_path):
    packages = pinned()
    assert HEAVY - {"triton"} <= set(packages)
    changed = Image(tmp_path, packages).changes(*base_requirements())
    assert set(changed) == OURS


def test_nor_of_an_image_with_the_newest_packages(tmp_path):
    shared = ("pydantic>=2.12.0", "packaging", "pyyaml", "rich", "typing-extensions>=4.10")
    newest = Image(tmp_path / "empty", {}).changes(*shared)
    assert {"pydantic", "pydantic-core", "rich"} <= set(newest)
    changed = Image(tmp_path / "new", {**pinned(), **newest}).changes(*base_requirements())
    assert set(changed) == OURS


def test_base_package_brings_no_engine(tmp_path):
    """Not even where nothing is installed: `[vllm]` has to be asked for by name."""
    brought = Image(tmp_path, {}).changes(*base_requirements())
    assert not HEAVY & set(brought)
    assert set(brought) >= OURS


def test_the_check_can_fail(tmp_path):
    image = Image(tmp_path, pinned())
    changed = image.changes("pydantic>=2.13,<3")
    assert changed["pydantic"] != pinned()["pydantic"]
