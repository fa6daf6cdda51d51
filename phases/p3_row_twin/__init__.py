"""P3: one product for m rows that reads each weight block once for all of them.

Claim: row i of the m-row product has the bits that the row gets alone, for every m and every
weight type, and they are the bits of the written arithmetic.
"""
