"""The proof before the timing: that what is timed computes the right thing."""
