"""Training: optimizers, schedules, data, checkpoints, and the Trainer that puts them together."""
