"""``python -m services.monitor``: the monitor alone, configured by its environment."""

from libs.service.run import main
from services.monitor.main import WIRING

main(WIRING)
