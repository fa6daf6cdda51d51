"""P8: the decode step as a CUDA graph over slot pointers.

A step replays one graph of its width, whose inputs are the slots, tokens and positions of its
rows. Its bits are those of the eager step, after every event that may move memory.
"""
