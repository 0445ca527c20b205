"""The gateway: HTTP for people, programs and training code, over the other services' facts."""
