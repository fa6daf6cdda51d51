"""P0: one scheduler serves many requests by steps over any engine of seven methods.

It claims that c waiting requests form `Batch m=c`, and that slots are conserved, never shared,
waited for in bounded time and released once for every ending, with each stream as it is alone.
"""
