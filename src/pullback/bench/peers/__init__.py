"""The systems we are timed against, one file each, in the order of the table's columns."""

from __future__ import annotations

from pullback.bench.peers.base import Peer
from pullback.bench.peers.jax_peer import JaxPeer
from pullback.bench.peers.ort_peer import OrtPeer
from pullback.bench.peers.tensorflow_peer import TensorflowPeer
from pullback.bench.peers.tfjs_peer import TfjsPeer
from pullback.bench.peers.torch_peer import TorchPeer


def all_peers() -> list[Peer]:
    """Every peer we know, installed or not."""
    return [TorchPeer(), JaxPeer(), TensorflowPeer(), OrtPeer(), TfjsPeer()]
