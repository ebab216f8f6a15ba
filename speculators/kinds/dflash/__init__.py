"""DFlash heads: a layer over a block of mask slots that attends to projected target states."""
