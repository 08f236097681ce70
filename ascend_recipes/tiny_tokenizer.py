"""Byte-level tokenizer of the tiny checkpoints: every UTF-8 text survives a round trip."""

import json
from pathlib import Path

SPECIAL_TOKENS = (
    "<|endoftext|>",
    "<|im_start|>",
    "<|im_end|>",
    "<|vision_start|>",
    "<|vision_end|>",
    "<|vision_pad|>",
    "<|image_pad|>",
    "<|video_pad|>",
)
"""Tokens that decoding may drop; their ids follow the 256 bytes in this order."""

MARKER_TOKENS = (
    "<tool_call>",
    "</tool_call>",
    "<tool_response>",
    "</tool_response>",
    "<think>",
    "</think>",
)
"""Tokens that reasoning and tool parsers look up in the vocabulary and need to see in the text."""

TOKEN_IDS = {token: 256 + rank for rank, token in enumerate(SPECIAL_TOKENS + MARKER_TOKENS)}
"""Id of every token that is not a byte."""

CHAT_TEMPLATE = """\
{%- macro text_of(content) -%}
  {%- if content is string -%}{{ content }}
  {%- elif content is not none -%}
    {%- for part in content -%}{%- if part.type == 'text' -%}{{ part.text }}{%- endif -%}
    {%- endfor -%}
  {%- endif -%}
{%- endmacro -%}
{%- for message in messages -%}
  {{- '<|im_start|>' + message.role + '\\n' + text_of(message.content) + '<|im_end|>\\n' -}}
{%- endfor -%}
{%- if add_generation_prompt -%}
  {{- '<|im_start|>assistant\\n' -}}
  {%- if enable_thinking is defined and enable_thinking is false -%}
    {{- '<think>\\n\\n</think>\\n\\n' -}}
  {%- endif -%}
{%- endif -%}
"""
"""ChatML, with text given as a string or as parts."""


def write_tokenizer(folder: Path, stops: tuple[int, ...]) -> None:
    """Write tokenizer.json, tokenizer_config.json, chat_template.jinja, generation_config.json.

    Args:
        folder: Existing folder of the checkpoint.
        stops: Token ids that end a generation.
    """
    from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers

    # Sorted: the order of `alphabet()` is not promised, and ids must not depend on it.
    vocabulary = {
        byte: rank for rank, byte in enumerate(sorted(pre_tokenizers.ByteLevel.alphabet()))
    }
    tokenizer = Tokenizer(models.BPE(vocab=vocabulary, merges=[]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens(
        [AddedToken(token, special=True, normalized=False) for token in SPECIAL_TOKENS]
    )
    tokenizer.add_tokens([AddedToken(token, normalized=False) for token in MARKER_TOKENS])
    tokenizer.save(str(folder / "tokenizer.json"))
    settings = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "bos_token": None,
        "eos_token": "<|im_end|>",
        "pad_token": "<|endoftext|>",
        "unk_token": None,
        "model_max_length": 262144,
        "clean_up_tokenization_spaces": False,
        "chat_template": CHAT_TEMPLATE,
    }
    generation = {
        "do_sample": True,
        "temperature": 1.0,
        "top_k": 20,
        "top_p": 0.95,
        "eos_token_id": list(stops),
        "pad_token_id": TOKEN_IDS["<|endoftext|>"],
    }
    for name, content in (
        ("tokenizer_config.json", settings),
        ("generation_config.json", generation),
    ):
        (folder / name).write_text(json.dumps(content, indent=2, ensure_ascii=False) + "\n")
    (folder / "chat_template.jinja").write_text(CHAT_TEMPLATE)
