"""Definitions are found without importing anything, and fingerprints see logic, not layout."""

import ast
import subprocess

import pytest

from ascend_recipes.errors import RecipeError
from ascend_recipes.patching.chunks import split_module
from ascend_recipes.patching.fingerprint import body_fingerprint, signature_text
from ascend_recipes.patching.sources import FolderSources, installed_sources, sources_at
from ascend_recipes.patching.tree import SourceTree

FILES = {
    "__init__.py": "from pkg.deep import *\nfrom .deep.core import f as renamed\n",
    "deep/__init__.py": "from .core import f, Base\nfrom torch import nn\n",
    "deep/core.py": (
        "import math\n"
        "from .. import values\n"
        "try:\n    from fast import f\nexcept ImportError:\n    def f(a, /, b=1, *c, d, **e): ...\n"
        "class Base:\n    field: int = 0\n    def m(self): ...\n"
        "    if True:\n        def branch(self): ...\n"
        "class Child(Base):\n    pass\n"
        "TEXT = '''\ndef hidden(): ...\n'''\n"
        "shared = Child(1)\n"
    ),
    "values.py": "LIMIT: int = 3\n",
}


@pytest.fixture
def tree(tmp_path):
    for name, text in FILES.items():
        path = tmp_path / "pkg" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return SourceTree(FolderSources("pkg", tmp_path / "pkg"))


@pytest.mark.parametrize(
    ("target", "home", "kind"),
    [
        ("pkg:renamed", "pkg.deep.core:f", "function"),
        ("pkg:Base.m", "pkg.deep.core:Base.m", "function"),
        ("pkg.deep.core:Child.m", "pkg.deep.core:Base.m", "function"),
        ("pkg.deep.core:Base.branch", "pkg.deep.core:Base.branch", "function"),
        ("pkg.deep.core:Base.field", "pkg.deep.core:Base.field", "value"),
        ("pkg.deep.core:shared.m", "pkg.deep.core:Base.m", "function"),
        ("pkg.deep.core:values.LIMIT", "pkg.values:LIMIT", "value"),
        ("pkg.deep:core.Base", "pkg.deep.core:Base", "class"),
        ("pkg:nn.Module", "torch:nn.Module", "external"),
    ],
)
def test_target_is_followed_to_its_definition(tree, target, home, kind):
    symbol = tree.find(target)
    assert (symbol.home, symbol.kind) == (home, kind)


@pytest.mark.parametrize(
    "target", ["pkg:absent", "pkg.deep.core:hidden", "pkg.none:f", "pkg:Base.x", "other:f"]
)
def test_what_does_not_exist_is_not_found(tree, target):
    assert tree.find(target) is None


def test_signature_names_every_kind_of_parameter(tree):
    assert tree.find("pkg:renamed").signature == "(a, /, b=, *c, d, **e)"


def fingerprint(text):
    return body_fingerprint(ast.parse(text).body[0])


def test_fingerprint_ignores_comments_docstrings_and_layout():
    plain = "def f(a):\n    return (a +\n        1)  # note\n"
    assert fingerprint('def f(a):\n    """Doc."""\n    return a + 1') == fingerprint(plain)


@pytest.mark.parametrize("text", ["def f(a): return a + 2", "def f(b): return b + 1", "@x\n" * 1])
def test_fingerprint_sees_logic(text):
    changed = text if text.startswith("def") else f"{text}def f(a): return a + 1"
    assert fingerprint(changed) != fingerprint("def f(a): return a + 1")


def test_signature_of_a_class_lists_bases_and_methods():
    node = ast.parse("class A(B, C[int]):\n    def m(self, x=1): ...\n    y = 2\n").body[0]
    assert signature_text(node) == "(B, C[int]) m(self, x=)"


def test_cutting_a_module_loses_nothing():
    sources = installed_sources("vllm")
    for path in [*sources.paths()][::60]:
        text = sources.read(path)
        parts = [node for chunk in split_module(text) for node in chunk.nodes]
        whole = ast.parse(text).body
        assert [ast.dump(item, include_attributes=True) for item in parts if is_code(item)] == [
            ast.dump(item, include_attributes=True) for item in whole if is_code(item)
        ], path


def is_code(node):
    return not (isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant))


def test_module_that_cannot_be_cut_is_parsed_whole(tmp_path):
    (tmp_path / "pkg").mkdir()
    text = 'x = 1 if """\n""" else (\n2)\ndef f(): ...\nclass A:\n    s = """\nB = 1\n"""\n'
    (tmp_path / "pkg" / "__init__.py").write_text(text)
    tree = SourceTree(FolderSources("pkg", tmp_path / "pkg"))
    assert tree.find("pkg:f").line == 4
    assert tree.find("pkg:A.s") is not None


def git(folder, *words):
    identity = ["-c", "user.name=t", "-c", "user.email=t@example.invalid"]
    subprocess.run(["git", "-C", str(folder), *identity, *words], check=True, capture_output=True)


def test_sources_of_a_git_revision_and_their_version(tmp_path, tree):
    git(tmp_path, "init", "--quiet")
    git(tmp_path, "add", ".")
    git(tmp_path, "commit", "--quiet", "-m", "one")
    git(tmp_path, "tag", "v1.2.0")
    (tmp_path / "pkg" / "values.py").write_text("LIMIT = 4\n")
    old = SourceTree(sources_at(f"{tmp_path}@v1.2.0", "pkg"))
    new = SourceTree(sources_at(str(tmp_path), "pkg"))
    assert (old.version, new.version) == ("1.2.0", "1.2.0")
    assert old.find("pkg.values:LIMIT").body_fingerprint != (
        new.find("pkg.values:LIMIT").body_fingerprint
    )
    assert old.find("pkg:renamed").home == "pkg.deep.core:f"


def test_unpacked_source_package_states_its_version(tmp_path, tree):
    (tmp_path / "PKG-INFO").write_text("Metadata-Version: 2.4\nName: pkg\nVersion: 3.1\n")
    assert sources_at(str(tmp_path), "pkg").version == "3.1"
    assert sources_at(str(tmp_path / "pkg"), "pkg").version == "3.1"


def test_suffix_of_a_build_is_no_other_version(tmp_path, tree):
    folder = tmp_path / "pkg-3.1+empty.dist-info"
    folder.mkdir()
    (folder / "METADATA").write_text("Name: pkg\nVersion: 3.1+empty\n")
    assert sources_at(str(tmp_path), "pkg").version == "3.1"
    (folder / "METADATA").unlink()
    (tmp_path / "pkg" / "_version.py").write_text("__version__ = version = '3.2+cpu'\n")
    assert sources_at(str(tmp_path), "pkg").version == "3.2"


@pytest.mark.parametrize("place", ["nowhere", ".@v1", "nowhere@v1"])
def test_place_without_the_package(place, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(RecipeError) as caught:
        sources_at(place, "pkg")
    assert caught.value.findings[0].id in ("patches.no_sources", "patches.git")
    assert caught.value.exit_code == 4
