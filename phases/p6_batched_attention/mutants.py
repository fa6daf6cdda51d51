"""Wrong attention, each with one fault, and the falsifiers that must kill it."""
MUTANTS = ()
