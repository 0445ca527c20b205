"""``python -m services.allinone DIR``: what ``shiftwork up --detach`` starts."""

from services.allinone.platform_process import main

raise SystemExit(main())
