"""``python -m services.launcher``: the launcher alone, configured by its environment."""

from libs.service.run import main
from services.launcher.main import WIRING

main(WIRING)
