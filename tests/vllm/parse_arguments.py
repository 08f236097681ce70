"""Child process: parse argument vectors with vLLM's own parser, under our platform.

Reads `{name: [words]}` as JSON on standard input and prints `{name: {argument: value}}`, and under
`options` every flag that the parser knows with the values it admits, where it lists them.
"""

import dataclasses
import json
import sys
from enum import Enum

from ascend_recipes.torchvision_schemas import define_missing_schemas


def plain(value: object) -> object:
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        fields = [field.name for field in dataclasses.fields(value)]
        return {name: plain(getattr(value, name, None)) for name in fields}
    if isinstance(value, Enum):
        return value.name
    if isinstance(value, dict):
        return {str(key): plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [plain(item) for item in value]
    return value if isinstance(value, bool | int | float | str | None) else repr(value)


def main() -> None:
    define_missing_schemas()
    from vllm.entrypoints.launchers.cli_args import make_arg_parser
    from vllm.utils.argparse_utils import FlexibleArgumentParser

    parser = make_arg_parser(FlexibleArgumentParser())
    parsed = {}
    for name, words in json.load(sys.stdin).items():
        try:
            parsed[name] = {
                key: plain(value) for key, value in vars(parser.parse_args(words)).items()
            }
        except SystemExit as ending:
            parsed[name] = {"exit": ending.code}
    parsed["options"] = {
        flag: None if action.choices is None else [str(choice) for choice in action.choices]
        for action in parser._actions
        for flag in action.option_strings
    }
    print(json.dumps(parsed))


if __name__ == "__main__":
    main()
