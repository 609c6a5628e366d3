// The journey of the README with the types made from OpenAPI: `node journey.js URL` prints what it saw.

import createClient from "openapi-fetch";

import type { components, paths } from "./api.js";

const client = createClient<paths>({ baseUrl: process.argv[2] });
const agent_id = "support";
const session_id = "typescript/user 42%";
const path = { agent_id, session_id };
const messages = [
  { role: "user" as const, content: "Where is order 7341?" },
  { role: "assistant" as const, content: "It left Ghent this morning." },
];
const event: components["schemas"]["TurnCompletedBody"] = {
  type: "turn.completed",
  event_id: "typescript-1",
  agent_id,
  session_id,
  messages,
};

/** Return the data of an answer that is no error. */
function good<Data>(answer: { data?: Data; error?: unknown }): Data {
  if (answer.data === undefined) throw new Error(JSON.stringify(answer.error));
  return answer.data;
}

const sessionPath = "/v1/agents/{agent_id}/sessions/{session_id}";
const published = good(await client.POST(`${sessionPath}/events`, { params: { path }, body: event }));
const window = good(
  await client.GET(`${sessionPath}/context`, {
    params: { path, query: { max_tokens: 8000, after: published.seq, wait_ms: 5000, placement: "user" } },
  }),
);
const tooSmall = await client.GET(`${sessionPath}/context`, { params: { path, query: { max_tokens: 1 } } });
const found = good(await client.GET(`${sessionPath}/search`, { params: { path, query: { q: "ghent" } } }));
const stored = good(await client.GET(`${sessionPath}/history`, { params: { path } }));
const session = good(await client.GET(sessionPath, { params: { path } }));
const compaction = good(await client.POST(`${sessionPath}/compactions`, { params: { path }, body: {} }));
const trail = good(await client.GET(`${sessionPath}/audit`, { params: { path } }));
const sessions = good(await client.GET("/v1/sessions"));
const seen = {
  fresh: window.fresh,
  messages: window.messages,
  total: window.account.total,
  error: tooSmall.error?.error.code,
  needed_tokens: typeof tooSmall.error?.error.needed_tokens === "number",
  found: found.hits.map((hit) => hit.message["content"]),
  stored: stored.messages.map((entry) => entry.message),
  messages_total: session.messages_total,
  compaction_id: compaction.compaction_id,
  audit: trail.audit.length,
  sessions: sessions.sessions.map((entry) => entry.session_id).filter((id) => id === session_id),
};
good(await client.DELETE(sessionPath, { params: { path } }));
console.log(JSON.stringify(seen));
