"""``python -m services.gateway``: the gateway alone, configured by its environment."""

from libs.service.run import main
from services.gateway.main import WIRING

main(WIRING)
