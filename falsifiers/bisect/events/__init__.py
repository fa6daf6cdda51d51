"""Record the events of a serving stack, and find the first wrong one."""
