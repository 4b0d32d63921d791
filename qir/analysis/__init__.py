"""Pure analyses of a graph: questions that passes, the plan and inspection ask alike."""
