"""What the commands that look at recipes compute; the command line prints it."""
