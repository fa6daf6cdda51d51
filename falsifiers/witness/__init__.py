"""The witness of a server: are its requests really batched, and did that change a token?

`take` asks a server from outside, `rules` says whether what it answered is admitted.
"""
