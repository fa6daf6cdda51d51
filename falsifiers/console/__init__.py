"""The command line: lazy commands, tables, progress lines and atomic output directories."""
