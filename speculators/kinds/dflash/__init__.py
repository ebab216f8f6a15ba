"""DFlash heads: a block of mask slots that attends to target states."""
