"""``python -m services.log_collector``: log-collector alone, configured by its environment."""

from libs.service.run import main
from services.log_collector.main import WIRING

main(WIRING)
