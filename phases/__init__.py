"""The phases: each package holds one increment and the attack on its claim."""
