#!/usr/bin/env bash
# qwen3_5_397b_a17b_w8a8_a3_2n_pd, plan DIGEST: node 0 (prefill-node0)
# vllm-ascend 0.23.0; written by ascend_recipes:
#   ascend-run export …
set -euo pipefail

# Images set up their toolkit for interactive shells only.
for file in /usr/local/Ascend/ascend-toolkit/set_env.sh /usr/local/Ascend/nnal/atb/set_env.sh; do
  if [ -f "${file}" ]; then
    set +eu
    # shellcheck disable=SC1090
    source "${file}"
    set -eu
  fi
done
export LD_LIBRARY_PATH="${LD_LIBRARY_PATH:+${LD_LIBRARY_PATH}:}/usr/local/lib"

export GLOO_SOCKET_IFNAME=eth0
export HCCL_BUFFSIZE=1536
export HCCL_IF_IP=10.0.0.1
export HCCL_OP_EXPANSION_MODE=AIV
export HCCL_SOCKET_IFNAME=eth0
export TP_SOCKET_IFNAME=eth0
export VLLM_ENGINE_READY_TIMEOUT_S=30000
export VLLM_MOONCAKE_ABORT_REQUEST_TIMEOUT=480
exec vllm serve /models/Qwen3.5-397B-A17B-w8a8-mtp \
  --host 10.0.0.1 \
  --port 8001 \
  --seed 1024 \
  --max-model-len 16384 \
  --max-num-seqs 64 \
  --max-num-batched-tokens 4096 \
  --block-size 128 \
  --no-enable-prefix-caching \
  --gpu-memory-utilization 0.9 \
  --tensor-parallel-size 16 \
  --enable-expert-parallel \
  --enforce-eager \
  --speculative-config '{"method": "mtp", "num_speculative_tokens": 3, "enforce_eager": true}' \
  --served-model-name qwen3_5_397b_a17b \
  --quantization ascend \
  --reasoning-parser qwen3 \
  --tool-call-parser qwen3_coder \
  --enable-auto-tool-choice \
  --no-disable-hybrid-kv-cache-manager \
  --kv-transfer-config '{"kv_connector": "MooncakeLayerwiseConnector", "kv_role": "kv_producer", "kv_port": 23010, "engine_id": "0", "kv_connector_extra_config": {"prefill": {"dp_size": 1, "tp_size": 16}, "decode": {"dp_size": 1, "tp_size": 16}}}'
