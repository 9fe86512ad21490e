"""The pages: one module each, with its views (plain dataclasses), its `load`, and its `PAGE`."""
