"""An application with tools of the sandbox's MCP server, for the command line."""

from fencepost import App, Effect
from fencepost.mcp import Streamable
from tests.integration.mcp_notes import Note, served, writing

PIN = "d" * 64

app = App("noted")
notes = served(app, Streamable(), "env:MCP_NOTES_URL")
writing(notes)
notes.mcp("note.find", arguments=Note, effect=Effect.READ, remote="find_note", definition=PIN)
notes.mcp("note.gone", arguments=Note, effect=Effect.READ, remote="gone", definition=PIN)
app.dependency("plain", "https://plain.example.com")
app.allow("svc:*", tools=["note.write", "note.*"])
