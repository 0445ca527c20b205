"""``python -m services.log_collector.agent``: the log agent of one node."""

from services.log_collector.agent.main import main

main()
