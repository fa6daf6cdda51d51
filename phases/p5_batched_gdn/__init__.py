"""P5: the recurrent ops of a GDN layer for all rows at once, with a pointer to each row's state.

Claim: each row's output and state are bit-identical to the same row run by itself by the engine's
op, for any width, chunks, slots and neighbours. Rows without tokens and idle slots are unchanged.
"""
