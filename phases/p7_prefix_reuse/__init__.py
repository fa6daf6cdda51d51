"""P7: a request begins behind the longest prefix whose whole state was kept.

It claims that tokens and state are bitwise those of a cold start for every prefix, that what is
reported as reused was really not computed, and that nothing kept is shared with a live slot.
"""
