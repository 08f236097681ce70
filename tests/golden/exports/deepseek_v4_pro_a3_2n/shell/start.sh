#!/usr/bin/env bash
# deepseek_v4_pro_a3_2n, plan DIGEST: start each node in its turn: serve
# vllm-ascend 0.23.0; written by ascend_recipes:
#   ascend-run export …
set -euo pipefail

here="$(cd -- "$(dirname -- "${BASH_SOURCE[0]}")" && pwd)"

case "${1:-}" in
  0)
    exec bash "${here}/node0-serve.sh"
    ;;
  1)
    exec bash "${here}/node1-serve.sh"
    ;;
  *)
    echo "usage: bash start.sh NODE   (nodes: 0 1; order: serve)" >&2
    exit 2
    ;;
esac
