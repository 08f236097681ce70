"""Our minimal router between clients, prefill and decode; `vllm-router` is the one for load.

It speaks what the documents' own proxy speaks and no more: one process, the standard library, the
least busy server of each role. Sources, at 182b75ea of vllm-ascend:
examples/disaggregated_prefill_v1/load_balance_proxy_server_example.py:818-835, 928-983, 1040-1120
and load_balance_proxy_layerwise_server_example.py:520-560, 700-755.
"""
