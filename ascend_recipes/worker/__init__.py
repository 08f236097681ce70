"""The worker and the model runner, and the device runtime below them."""
