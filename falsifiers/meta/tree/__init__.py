"""Tests of the rules that the whole tree follows."""
