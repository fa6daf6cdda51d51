"""What a serving stack does, event by event, and the first one that is wrong."""
