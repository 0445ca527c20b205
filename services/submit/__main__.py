"""``python -m services.submit``: submit alone, configured by its environment."""

from libs.service.run import main
from services.submit.main import WIRING

main(WIRING)
