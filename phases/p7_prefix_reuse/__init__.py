"""P7: a request starts after the longest prefix whose complete state is stored.

The claim: tokens and state are bitwise those of a cold start for every prefix. Tokens reported as
reused were not computed. No stored tensor shares memory with a slot.
"""
