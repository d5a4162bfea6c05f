"""The paper's experiments: run as `python bench/paper --data DIR`; README.md explains the parts."""
