"""What samplers share: their steps, how they are scaled, and how samples are kept."""
