"""Speed and acceptance measured on real vLLM servers."""
