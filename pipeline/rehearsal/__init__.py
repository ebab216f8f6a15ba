"""A rehearsal: R1's recipe on a random target of R1's widths, cut to what this machine holds."""
