"""Where a runtime that puts channels last has each tensor in memory, and what that changes."""
