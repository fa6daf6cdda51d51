"""Attack deliberately wrong versions and record which falsifier kills each one."""
