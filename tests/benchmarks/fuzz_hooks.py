"""Hooks for what schemathesis cannot know of /score: lists of equal length, queries that begin with their prompts."""

from __future__ import annotations

from typing import Any

import schemathesis


@schemathesis.hook
def map_body(context: Any, body: Any) -> Any:
    """Make the lists of a body fit together; what breaks the schema stays broken."""
    if context.operation.path != "/score" or not isinstance(body, dict):
        return body
    prompts, queries, labels = (body.get(name) for name in ("prompts", "query", "labels"))
    if not (isinstance(prompts, list) and isinstance(queries, list) and prompts and queries):
        return body
    longest = max(len(prompts), len(queries), len(labels) if isinstance(labels, list) else 0)
    prompts = prompts + prompts[:1] * (longest - len(prompts))
    queries = queries + [""] * (longest - len(queries))
    joined = [p + q if isinstance(p, str) and isinstance(q, str) else q for p, q in zip(prompts, queries, strict=True)]
    fitting = {**body, "prompts": prompts, "query": joined}
    if isinstance(labels, list):
        known = ["TH" if isinstance(label, str) else label for label in labels]
        fitting["labels"] = known + [None] * (longest - len(known))
    return fitting
