"""What an endpoint's own file says of its `vllm serve` command, as values of a recipe.

find.py finds the command in any file that people start vLLM with; serve_command.py turns its words
into recipe keys. Modules between them read one carrier each, or what a file leaves to others.
"""
