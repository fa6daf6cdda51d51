"""P1: a step of m rows that loops the single-sequence oracle over the rows' slots.

Claim: every row's logits and state are bit-identical to that sequence run by itself, at any width,
lengths, slots and order, and no other slot changes.
"""
