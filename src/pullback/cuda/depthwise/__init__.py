"""Convolutions of one channel a group on a GPU: forward, input gradient, filter gradient, 1-D to 3-D, both layouts."""
