"""The block of both READMEs that counts changes to other packages."""

import re

from ascend_recipes.patching.markdown import table
from ascend_recipes.patching.peers import PEER_COUNT
from ascend_recipes.patching.shims import device_shims
from ascend_recipes.registry.load import Registry

READMES = {"README.md": "en", "README.zh.md": "zh"}

_BLOCK = re.compile(r"(<!-- patches:begin[^>]*-->\n).*?(<!-- patches:end -->)", re.DOTALL)

_WORDS = {
    "en": (
        ("changes to other packages", "here, all recipes", "vllm-ascend at 182b75ea"),
        "monkey-patches",
        "names of torch lent by the device runtime, in a context",
        "not counted",
    ),
    "zh": (
        ("对其他软件包的改动", "本项目，全部配方", "vllm-ascend（182b75ea）"),
        "猴子补丁",
        "设备运行时在上下文中借用的 torch 名称",
        "未计",
    ),
}


def status_block(registry: Registry, language: str = "en") -> str:
    """Lines for the status section: patches beside vllm-ascend's.

    The names that the device runtime lends are changes too, made and taken back in a context;
    they stand in a row of their own so that nothing hides.

    Args:
        registry: For the patch rows.
        language: `en` or `zh`.
    """
    head, patches, lent, unknown = _WORDS[language]
    rows = [
        (patches, str(len(registry.patches)), str(PEER_COUNT)),
        (lent, str(len(device_shims())), unknown),
    ]
    return table(head, rows)


def with_status_block(text: str, block: str) -> str:
    """A README whose marked block is current; unchanged if it has no markers."""
    return _BLOCK.sub(lambda match: f"{match[1]}{block}\n{match[2]}", text)
