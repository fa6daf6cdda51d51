"""Vectors: calls of an op as files, so that a program in any language can be judged.

A call is a safetensors file of inputs; a program answers it by a safetensors file of outputs with
the same name. The falsifiers of a phase then run unchanged on those outputs.
"""
