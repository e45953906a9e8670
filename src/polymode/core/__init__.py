"""What every room of polymode shares: stacks of networks, likelihoods, the training loop, safe files."""
