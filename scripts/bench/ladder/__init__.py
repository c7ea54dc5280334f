"""The published experiment: how long a training loop waits for data, rung by rung."""
