"""Who performs each operation on each generation, and what it costs where nobody special does."""

from collections.abc import Mapping

from ascend_recipes.schema.base import Json


def deployment_sizes(
    config: Mapping[str, Json],
    *,
    tensor_parallel: int,
    tokens: int,
    requests: int,
    context: int,
    block: int,
) -> dict[str, float]:
    """Sizes over which contracts write theirs: the configuration's numbers and the batch.

    Args:
        config: Configuration of the language model; numbers of nested sections count too.
        tensor_parallel: Dies that share a layer.
        tokens: Tokens of a step.
        requests: Sequences of a step.
        context: Keys of a request.
        block: Tokens of a cache block.
    """
    sizes: dict[str, float] = {}
    for section in (*(part for part in config.values() if isinstance(part, dict)), config):
        for key, value in section.items():
            if isinstance(value, int | float) and not isinstance(value, bool):
                sizes[key] = value
    return sizes | {
        "tp": tensor_parallel,
        "tokens": tokens,
        "requests": requests,
        "context": context,
        "block": block,
    }
