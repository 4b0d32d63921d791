"""Pure analyses of a graph, for passes, plans and inspection."""
