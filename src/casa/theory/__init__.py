"""The paper's statements, checked numerically on finite MDPs and on networks (`casa verify`)."""
