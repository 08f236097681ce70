#!/usr/bin/env bash
# deepseek_v4_pro_a3_2n, plan DIGEST: node 1 (serve-node1)
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
export HCCL_BUFFSIZE=2048
export HCCL_IF_IP=10.0.0.2
export HCCL_OP_EXPANSION_MODE=AIV
export HCCL_SOCKET_IFNAME=eth0
export OMP_NUM_THREADS=10
export OMP_PROC_BIND=false
export TASK_QUEUE_ENABLE=1
export TP_SOCKET_IFNAME=eth0
export VLLM_ENGINE_READY_TIMEOUT_S=1800
exec vllm serve /models/DeepSeek-V4-Pro-w4a8-mtp \
  --safetensors-load-strategy prefetch \
  --max-model-len 135000 \
  --max-num-seqs 32 \
  --max-num-batched-tokens 4096 \
  --block-size 128 \
  --enable-prefix-caching \
  --gpu-memory-utilization 0.9 \
  --tensor-parallel-size 16 \
  --data-parallel-size 2 \
  --enable-expert-parallel \
  --additional-config '{"multistream_overlap_shared_expert": true}' \
  --compilation-config '{"cudagraph_mode": "FULL_DECODE_ONLY"}' \
  --speculative-config '{"method": "mtp", "num_speculative_tokens": 1, "enforce_eager": true}' \
  --served-model-name deepseek_v4_pro \
  --quantization ascend \
  --tokenizer-mode deepseek_v4 \
  --reasoning-parser deepseek_v4 \
  --tool-call-parser deepseek_v4 \
  --enable-auto-tool-choice \
  --data-parallel-size-local 1 \
  --data-parallel-start-rank 1 \
  --data-parallel-address 10.0.0.1 \
  --data-parallel-rpc-port 13300 \
  --headless
