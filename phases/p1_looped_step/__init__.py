"""P1: a step of m rows, made by looping the single-sequence oracle over the rows' slots.

Claim: every row's logits and state are bitwise what that sequence gets alone, whatever the width,
the lengths, the slots and the order, and no other slot is touched.
"""
