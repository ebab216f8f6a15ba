"""Parts of a logged call: messages, sampling parameters, the response and how it ended."""
