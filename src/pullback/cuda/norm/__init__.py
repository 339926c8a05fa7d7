"""Normalization on a GPU: of channels over a batch, with an activation and a sum in the same pass, and of rows."""
