"""P2: the hybrid engine and its HTTP server, without a lock around steps or an early return.

The claim: a client's reply among others is byte for byte its reply alone. c concurrent requests
form `Batch m=c`. A single live request continues its session turn.
"""
