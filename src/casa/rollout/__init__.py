"""Acting and remembering: the actor, the trajectory ring, and the samplers that feed the learner."""
