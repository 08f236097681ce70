"""What a machine has, beside what a recipe and the tested releases want of it."""
