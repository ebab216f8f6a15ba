"""Commands, the recipe schema, the stages, the shipped recipes, the embedded target."""
