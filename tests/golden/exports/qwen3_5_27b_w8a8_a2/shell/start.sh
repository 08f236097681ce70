#!/usr/bin/env bash
# qwen3_5_27b_w8a8_a2, plan DIGEST: start each node in its turn: serve
# vllm-ascend 0.23.0; written by ascend_recipes:
#   ascend-run export …
set -euo pipefail

here="$(cd -- "$(dirname -- "${BASH_SOURCE[0]}")" && pwd)"

case "${1:-}" in
  0)
    exec bash "${here}/node0-serve.sh"
    ;;
  *)
    echo "usage: bash start.sh NODE   (nodes: 0; order: serve)" >&2
    exit 2
    ;;
esac
