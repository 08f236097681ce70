"""Export: a deployment as files that start it without us."""
