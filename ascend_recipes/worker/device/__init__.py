"""The seam between one runner and two devices."""
