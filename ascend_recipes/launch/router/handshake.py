"""What a request says to a prefill and to a decode server. Pure: bodies in, bodies out."""

from collections.abc import Mapping
from typing import Any

Body = dict[str, Any]

TRANSFER = "kv_transfer_params"
DEFAULT_COMPLETION_TOKENS = 16
"""What `/v1/completions` takes for max_tokens where a client says nothing."""
RECOMPUTED = "recomputed"
"""Stop reason of a decode server that dropped a request's cache; prefill has to compute it anew."""


def prefill_body(body: Mapping[str, Any]) -> Body:
    """Ask a prefill server to compute the prompt and to keep its cache for a decode server."""
    asked = {
        "do_remote_decode": True,
        "do_remote_prefill": False,
        "remote_engine_id": None,
        "remote_block_ids": None,
        "remote_host": None,
        "remote_port": None,
    }
    return {**_one_token(body), TRANSFER: asked}


def decode_body(body: Mapping[str, Any], prefilled: Mapping[str, Any]) -> Body:
    """The client's request, and where the cache of its prompt is."""
    offered = prefilled.get(TRANSFER)
    return {**body, TRANSFER: offered} if offered else dict(body)


def layerwise_decode_body(body: Mapping[str, Any], callback: str) -> Body:
    """The client's request to a decode server that calls back when it has room for the cache."""
    asked = {"do_remote_decode": False, "do_remote_prefill": True, "metaserver": callback}
    return {**body, TRANSFER: asked}


def layerwise_prefill_body(body: Mapping[str, Any], offered: Mapping[str, Any]) -> Body:
    """The prompt for a prefill server, with the room that the decode server has offered."""
    return {**_one_token(body), TRANSFER: dict(offered)}


def _one_token(body: Mapping[str, Any]) -> Body:
    whole = {key: value for key, value in body.items() if key != "stream_options"}
    if "max_completion_tokens" in whole:
        whole["max_completion_tokens"] = 1
    return {**whole, "stream": False, "max_tokens": 1, "min_tokens": 1}


def request_ids(path: str, request_id: str, body: Mapping[str, Any]) -> tuple[str, ...]:
    """Names that vLLM gives to the parts of a request, by which a decode server calls back."""
    if path.endswith("/chat/completions"):
        return (f"chatcmpl-{request_id}",)
    prompt = body.get("prompt")
    parts = 1
    if isinstance(prompt, list) and prompt and not isinstance(prompt[0], int):
        parts = len(prompt)
    return tuple(f"cmpl-{request_id}-{index}" for index in range(parts))


def is_recomputed(chunk: Mapping[str, Any]) -> bool:
    """Whether a decode server gave a request up because its cache was full."""
    return any(choice.get("stop_reason") == RECOMPUTED for choice in chunk.get("choices", []))


class StreamedAnswer:
    """What a client has received so far, enough to go on where a decode server gave up."""

    def __init__(self) -> None:
        self.text = ""
        self.num_tokens = 0
        self.has_thought = False
        """Whether reasoning was among it, which no request can hand back."""

    def add(self, chunk: Mapping[str, Any]) -> None:
        """Take note of a chunk that goes to the client."""
        for choice in chunk.get("choices", [])[:1]:
            delta = choice.get("delta") or {}
            text = delta.get("content") or choice.get("text") or ""
            thought = delta.get("reasoning") or delta.get("reasoning_content")
            self.has_thought = self.has_thought or bool(thought)
            self.text += text
            # A chunk may hold several tokens; without their ids it counts as one.
            self.num_tokens += len(choice.get("token_ids") or (1,)) if text or thought else 0

    def continuation(self, body: Mapping[str, Any]) -> Body | None:
        """The request that yields the rest; none where nothing can express it."""
        if "messages" in body:
            if self.has_thought:
                return None
            said = {"role": "assistant", "content": self.text}
            rest = {"continue_final_message": True, "add_generation_prompt": False}
            more = {**body, "messages": [*body["messages"], said], **rest} if self.text else body
            return self._shortened(more, body.get("max_tokens"))
        prompt = body.get("prompt")
        if not isinstance(prompt, str):
            return None
        limit = body.get("max_tokens", DEFAULT_COMPLETION_TOKENS)
        return self._shortened({**body, "prompt": prompt + self.text}, limit)

    def _shortened(self, body: Mapping[str, Any], limit: int | None) -> Body:
        shorter = dict(body)
        for key, value in (
            ("max_tokens", limit),
            ("max_completion_tokens", body.get("max_completion_tokens")),
        ):
            if value is not None:
                shorter[key] = max(1, value - self.num_tokens)
        return shorter
