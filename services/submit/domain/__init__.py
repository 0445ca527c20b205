"""The pure core of submit: which tasks and goals are accepted, and why others are not."""
