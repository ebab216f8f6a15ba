"""The recipe schema, and how recipes are loaded and checked."""
