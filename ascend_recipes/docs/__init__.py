"""Pages and schema files that are generated from recipes, rows and models, and committed."""
