"""Contracts: what parity means for each phase, and the golden data that pins the arithmetic."""
