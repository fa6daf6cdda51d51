"""P2: the hybrid engine behind a real server, without a lock around steps or an early return.

It claims that what a client gets over HTTP among others is byte for byte what it gets alone, that
c concurrent requests form `Batch m=c`, and that one live request keeps its session turn.
"""
