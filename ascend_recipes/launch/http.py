"""The few requests that the launcher itself sends, without a proxy in between."""

import http.client
import json
import os
from contextlib import closing

_WILDCARDS = {"0.0.0.0": "127.0.0.1", "::": "::1", "": "127.0.0.1"}
"""Addresses that one can bind but not talk to."""


class ServerClient:
    """Talks to the server that was just started."""

    def __init__(self, host: str, port: int) -> None:
        self.host = _WILDCARDS.get(host, host)
        self.port = port
        shown = f"[{self.host}]" if ":" in self.host else self.host
        self.url = f"http://{shown}:{port}"

    def is_healthy(self) -> bool:
        """Whether `/health` answers 200."""
        try:
            return self._request("GET", "/health", timeout_s=5.0)[0] == http.client.OK
        except (OSError, http.client.HTTPException):
            return False

    def model_name(self) -> str:
        """Name under which clients address the model."""
        _, text = self._request("GET", "/v1/models", timeout_s=30.0)
        return str(json.loads(text)["data"][0]["id"])

    def canary(self, *, timeout_s: float) -> str | None:
        """Complete one token; None on success, otherwise what went wrong."""
        try:
            body = {"model": self.model_name(), "prompt": "1", "max_tokens": 1, "temperature": 0}
            status, text = self._request(
                "POST", "/v1/completions", json.dumps(body), timeout_s=timeout_s
            )
            if status != http.client.OK:
                return f"status {status}: {text[:300]}"
            return None if json.loads(text)["choices"] else f"no choices: {text[:300]}"
        except (OSError, http.client.HTTPException, ValueError, LookupError) as error:
            return f"{type(error).__name__}: {error}"

    def _request(
        self, method: str, path: str, body: str | None = None, *, timeout_s: float
    ) -> tuple[int, str]:
        headers = {"Content-Type": "application/json"}
        if key := os.environ.get("VLLM_API_KEY"):
            headers["Authorization"] = f"Bearer {key}"
        with closing(http.client.HTTPConnection(self.host, self.port, timeout=timeout_s)) as link:
            link.request(method, path, body, headers)
            response = link.getresponse()
            return response.status, response.read().decode("utf-8", errors="replace")
