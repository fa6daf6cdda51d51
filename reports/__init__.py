"""Reports: what the gate, the kill matrix and a user's own file said, made to be looked at."""
