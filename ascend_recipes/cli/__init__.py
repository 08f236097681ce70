"""The command line: words in, findings and documents out."""
