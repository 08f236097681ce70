export VLLM_USE_MODELSCOPE=True
export HCCL_IF_IP=$1

vllm serve vllm-ascend/GLM-5.1-w8a8 --host 0.0.0.0 --port 7100 \
  --data-parallel-size 2 --data-parallel-rank $2 --data-parallel-address $3 \
  --data-parallel-rpc-port 13321 --tensor-parallel-size 8 --enable-expert-parallel \
  --max-model-len 65536 --max-num-seqs 16 --max-num-batched-tokens 8192 \
  --quantization ascend --enforce-eager --gpu-memory-utilization 0.9 \
  --kv-transfer-config '{"kv_connector": "MooncakeConnectorV1", "kv_role": "kv_producer",
    "kv_port": "30000", "engine_id": "0", "kv_connector_extra_config": {
      "prefill": {"dp_size": 2, "tp_size": 8}, "decode": {"dp_size": 4, "tp_size": 4}}}'

vllm serve vllm-ascend/GLM-5.1-w8a8 --host 0.0.0.0 --port 7200 \
  --data-parallel-size 4 --data-parallel-rank $2 --data-parallel-address $3 \
  --data-parallel-rpc-port 13321 --tensor-parallel-size 4 --enable-expert-parallel \
  --max-model-len 65536 --max-num-seqs 16 --max-num-batched-tokens 128 \
  --quantization ascend --gpu-memory-utilization 0.9 \
  --compilation-config '{"cudagraph_mode": "FULL_DECODE_ONLY"}' \
  --additional-config '{"scheduler_config": {"recompute_scheduler_enable": true}}' \
  --kv-transfer-config '{"kv_connector": "MooncakeConnectorV1", "kv_role": "kv_consumer",
    "kv_port": "30200", "engine_id": "1", "kv_connector_extra_config": {
      "prefill": {"dp_size": 2, "tp_size": 8}, "decode": {"dp_size": 4, "tp_size": 4}}}'
