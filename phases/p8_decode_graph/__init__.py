"""P8: the decode step as a CUDA graph over slot pointers.

A step of any rows replays one graph of its width, whose inputs say which slots, tokens and
positions are meant, and gives the eager step's bits after every event that may move memory.
"""
