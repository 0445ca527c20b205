"""``python -m services.scheduler``: the scheduler alone, configured by its environment."""

from libs.service.run import main
from services.scheduler.main import WIRING

main(WIRING)
