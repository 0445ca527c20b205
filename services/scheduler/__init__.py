"""The scheduler: owns every task's state and every GPU's assignment."""
