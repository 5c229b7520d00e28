"""Learning: the objective, the learner, weights exchange, loops, checkpoints and run directories."""
