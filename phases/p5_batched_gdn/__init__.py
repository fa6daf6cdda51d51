"""P5: the recurrent part of a GDN layer for all rows at once, each row's state behind a pointer.

Claim: every output and every byte of state is bitwise what the row gets alone from the engine's
op, for any width, chunks, slots and neighbours; rows without tokens and idle slots stay untouched.
"""
