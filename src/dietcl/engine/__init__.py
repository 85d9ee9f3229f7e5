"""The loop that draws, charges, updates, evaluates and saves."""
