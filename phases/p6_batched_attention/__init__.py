"""P6: attention of all rows at once, each over its own slot's keys through pointers and lengths.

Claim: every output and every appended key and value is bitwise the per-slot result, for ragged
lengths, split edges, pads and chunks; a row's bits depend on its own length alone.
"""
