"""What a time step may spend, what each operation costs, and the ledger that enforces it."""
