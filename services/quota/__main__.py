"""``python -m services.quota``: quota alone, configured by its environment."""

from libs.service.run import main
from services.quota.main import WIRING

main(WIRING)
