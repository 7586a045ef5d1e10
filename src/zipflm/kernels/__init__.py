"""The operations that decide the speed, each in plain PyTorch and in a fast form."""
