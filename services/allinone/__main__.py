"""``python -m services.allinone DIR``: what ``shiftwork up --detach`` starts."""

from services.allinone.keep import main

raise SystemExit(main())
