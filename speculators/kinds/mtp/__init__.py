"""The MTP layer that a DeepSeek-V3, R1 or GLM-4.5 target ships."""
