"""Create the automations of automations.yaml on the server that PREFECT_API_URL names,
or replace them.

With RFF_DIST_NOTIFY_URL in the environment each of them sends a message there too, by
the webhook that Slack, Mattermost, Teams and many others understand: `{"text": …}`. The
URL is stored as a secret, since it
holds a token::

    RFF_DIST_NOTIFY_URL=https://example.org/hook .venv/bin/python deploy/automations.py
"""

import os
import sys
from pathlib import Path
from typing import Any
from uuid import UUID

import yaml
from prefect.blocks.notifications import CustomWebhookNotificationBlock
from prefect.client.orchestration import SyncPrefectClient, get_client
from prefect.events.schemas.automations import AutomationCore

AUTOMATIONS = Path(__file__).with_name("automations.yaml")
BLOCK = "rff-dist-notify"
BODY = """{{ flow.name }}, run {{ flow_run.name }}: {{ flow_run.state.name }}
{{ flow_run.state.message or "" }}
{{ flow_run | ui_url }}"""


def store_webhook(url: str) -> UUID:
    """Store where messages are sent, under a name, and return the block's number."""
    block = CustomWebhookNotificationBlock(
        name="rff_dist",
        url="{{url}}",
        json_data={"text": "{{subject}}\n{{body}}"},
        secrets={"url": url},
    )
    return block.save(BLOCK, overwrite=True)


def with_message(automation: dict[str, Any], block: UUID) -> dict[str, Any]:
    """Return an automation that sends a message beside what else it does."""
    acting = [
        action for action in automation["actions"] if action["type"] != "do-nothing"
    ]
    message = {
        "type": "send-notification",
        "block_document_id": block,
        "subject": automation["name"],
        "body": BODY,
    }
    return {**automation, "actions": [*acting, message]}


def replace(client: SyncPrefectClient, automation: AutomationCore) -> None:
    """Create an automation in the place of those of the same name."""
    former = [one.id for one in client.read_automations_by_name(automation.name)]
    client.create_automation(automation)
    for number in former:
        client.delete_automation(number)


def main() -> None:
    """Create them all."""
    automations = yaml.safe_load(AUTOMATIONS.read_text(encoding="utf-8"))["automations"]
    url = os.environ.get("RFF_DIST_NOTIFY_URL")
    if url:
        block = store_webhook(url)
        automations = [with_message(automation, block) for automation in automations]
    # gives up after PREFECT_API_REQUEST_TIMEOUT, 60 s
    with get_client(sync_client=True) as client:
        for automation in automations:
            replace(client, AutomationCore.model_validate(automation))
    told = (
        f"each sends a message by the block {BLOCK}"
        if url
        else "no messages: RFF_DIST_NOTIFY_URL is not set"
    )
    sys.stdout.write(f"{len(automations)} automations; {told}\n")


if __name__ == "__main__":
    main()
