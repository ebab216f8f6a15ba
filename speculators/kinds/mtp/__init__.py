"""The MTP layer that a DeepSeek-V3/R1 target ships."""
