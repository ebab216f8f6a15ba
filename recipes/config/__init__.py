"""The recipe schema and how a recipe is loaded and checked."""
