"""What every room of polymode shares: stacks, likelihoods, the loop, safe files."""
