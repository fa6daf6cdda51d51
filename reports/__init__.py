"""Reports: pages and files from the results of the gate, the mutants and a user's model."""
