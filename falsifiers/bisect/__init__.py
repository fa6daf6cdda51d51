"""Find the first place where a batch differs from its rows run by themselves, and shrink it."""
