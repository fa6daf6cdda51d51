"""Tests of the suite itself: each falsifier, gate and rule is shown a lie it must catch."""
