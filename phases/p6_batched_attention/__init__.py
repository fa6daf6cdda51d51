"""P6: attention of all rows at once, each row over the keys of its slot, by pointers and lengths.

Claim: each row's output and appended keys and values are bit-identical to the same row by itself,
for ragged lengths, split edges, pads and chunks. A row's bits depend on no other row's length.
"""
