"""Parts of the launch plan, one module each; `ascend_recipes.plan` puts them together."""
