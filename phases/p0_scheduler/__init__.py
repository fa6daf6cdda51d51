"""P0: one scheduler serves many requests by steps over any engine of seven methods.

The claim: c waiting requests form `Batch m=c`. Slots are conserved, never shared, and released
once for every ending. The wait for a slot is bounded. Each stream is the same as alone.
"""
