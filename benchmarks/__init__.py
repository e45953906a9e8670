"""Side-by-side benchmarks of polymode, plain PyTorch and peers: `python -m benchmarks`."""
