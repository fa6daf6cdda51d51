"""P4: the step goes layer by layer, every matrix multiplied once with all of the step's rows.

Claim: every logit and every byte of state is bitwise the looped step's, for any width, lengths,
chunks and membership, and a prompt in chunks is bitwise the prompt token by token.
"""
