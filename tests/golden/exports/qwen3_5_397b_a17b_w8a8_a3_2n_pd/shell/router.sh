#!/usr/bin/env bash
# qwen3_5_397b_a17b_w8a8_a3_2n_pd, plan DIGEST: the router (vllm-router does not answer the callbacks of MooncakeLayerwiseConnector)
# vllm-ascend 0.23.0; written by ascend_recipes:
#   ascend-run export …
set -euo pipefail

here="$(cd -- "$(dirname -- "${BASH_SOURCE[0]}")" && pwd)"

# wait_for SECONDS URL…: until every server answers.
wait_for() {
  python3 -c '
import http.client, sys, time, urllib.request
ask = urllib.request.build_opener(urllib.request.ProxyHandler({})).open
deadline = time.monotonic() + float(sys.argv[1])
for url in sys.argv[2:]:
    while True:
        try:
            ask(url, timeout=5).close()
            break
        except (OSError, http.client.HTTPException) as error:
            if time.monotonic() > deadline:
                sys.exit(f"{url} does not answer: {error}")
        time.sleep(2)
' "$@"
}

wait_for \
  1800 \
  http://10.0.0.1:8001/health \
  http://10.0.0.2:8001/health

export PYTHONPATH="${here}/router${PYTHONPATH:+:${PYTHONPATH}}"
settings='{"host": "10.0.0.1", "port": 8000, "address": "10.0.0.1", "prefill": [["10.0.0.1", 8001]], "decode": [["10.0.0.2", 8001]], "layerwise": true}'
exec python3 -m ascend_recipes.launch.router.server <(printf '%s' "${settings}")
