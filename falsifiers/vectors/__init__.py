"""Vectors: calls of an op as files, so that a program in any language can be judged.

A call is a safetensors file of inputs; whoever answers it writes a safetensors file of outputs of
the same name. The falsifiers of a phase then run as they are, over what was written.
"""
