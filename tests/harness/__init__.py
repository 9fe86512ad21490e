"""What tests share: nodes and clusters to test on, waiting, readers of the project's files."""
