"""Judge one case: compare values, name the rule that failed, and record a verdict."""
