"""What an endpoint's own file says of its `vllm serve` command, as values of a recipe.

find.py finds the command in any file that people start vLLM with, words.py in the words of a
script, forms/ in each form of file; serve_command.py turns its words into recipe keys, and notes.py
says what was left out.
"""
