"""References of the operations: plain PyTorch, slow, obviously right; no binding imports them."""
