"""Scripts that record what a framework computes, each run in an environment of its own."""
