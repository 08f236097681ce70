#!/usr/bin/env bash
# qwen3_5_397b_a17b_w8a8_a3_2n_pd, plan DIGEST: start each node in its turn: prefill -> decode -> router
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

processes=()
# shellcheck disable=SC2329  # The trap calls it.
stop() {
  trap - EXIT
  mapfile -t running <<<"$(jobs -p)"
  kill "${running[@]}" 2>/dev/null || true
  wait
}
trap stop EXIT
trap 'exit 130' INT
trap 'exit 143' TERM

case "${1:-}" in
  0)
    bash "${here}/node0-prefill.sh" &
    processes+=("$!")
    bash "${here}/router.sh" &
    processes+=("$!")
    # Whichever ends first ends the others.
    status=0
    wait -n "${processes[@]}" || status=$?
    exit "${status}"
    ;;
  1)
    wait_for \
      1800 \
      http://10.0.0.1:8001/health
    exec bash "${here}/node1-decode.sh"
    ;;
  *)
    echo "usage: bash start.sh NODE   (nodes: 0 1; order: prefill -> decode -> router)" >&2
    exit 2
    ;;
esac
