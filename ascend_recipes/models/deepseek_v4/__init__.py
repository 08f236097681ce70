"""DeepSeek-V4: hyper-connections, compressed sparse attention, hash-routed experts."""
