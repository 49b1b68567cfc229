"""Models, recipes and architectures held side by side."""
