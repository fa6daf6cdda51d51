"""The gate: run the cases of a phase with pytest and turn verdicts into a phase status."""
