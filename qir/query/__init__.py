"""Questions about programs: search by expression, differences, pairing, cost, display."""
