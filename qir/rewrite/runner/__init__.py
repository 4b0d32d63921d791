"""The pass runner: contracts, validation, bisection and the journal."""
