"""Model classes and tiny forms, one folder a family."""
