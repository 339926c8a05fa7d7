"""Which peers a bench command times, and their list."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pullback.cli.bench_options import narrow

if TYPE_CHECKING:
    from pullback.bench.peers.base import Peer


def choose_peers(wanted: list[str] | None) -> list[Peer]:
    """The peers to time. One asked for by name must be there; the others may be missing, and the table says so."""
    from pullback.bench.peers import all_peers

    known = all_peers()
    if not wanted:
        return [peer for peer in known if not peer.slow]
    if wanted == ["none"]:
        return []
    if "all" in wanted:
        return known
    names = narrow("--peer", wanted, [*(peer.name for peer in known), "all", "none"])
    chosen = [peer for peer in known if peer.name in names]
    for peer in chosen:
        why = peer.missing()
        if why is not None:
            raise ValueError(f"--peer {peer.name}: {why}")
    return chosen


def print_peers() -> None:
    from pullback.bench.peers import all_peers

    print("peers")
    for peer in all_peers():
        why = peer.missing()
        asked = ", only when asked for" if peer.slow else ""
        found = f"{peer.version()}, {' and '.join(peer.layouts)}{asked}" if why is None else why
        print(f"  {peer.name:<10} {found}")
