"""Forms in which people keep a command: a module for each, and the variables that they use."""
