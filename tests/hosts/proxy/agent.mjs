// An agent with the client of OpenAI for Node. It prints the texts and models that it got.
import { createRequire } from "node:module";
import { pathToFileURL } from "node:url";

const [directory, baseURL, session] = process.argv.slice(2);
const entry = createRequire(`${directory}/agent.mjs`).resolve("openai");
const { default: OpenAI } = await import(pathToFileURL(entry));
const client = new OpenAI({
  baseURL,
  apiKey: "sk-quokka",
  defaultHeaders: { "x-turnfold-session": session },
});
const tools = [{ type: "function", function: { name: "track", parameters: { type: "object" } } }];
const messages = [
  { role: "system", content: "Be brief." },
  { role: "user", content: "Where is 7341?" },
];

async function whole() {
  const body = { model: "gpt-4.1", messages, tools };
  return (await client.chat.completions.create(body)).choices[0].message;
}

async function streamed() {
  const body = { model: "gpt-4.1", messages, tools };
  const stream = client.chat.completions.stream(body);
  return (await stream.finalChatCompletion()).choices[0].message;
}

const texts = [];
for (const ask of [whole, whole, streamed, streamed]) {
  if (ask === streamed && texts.length === 1) {
    messages.push({ role: "user", content: "Sure?" });
    texts.push("asked again");
  }
  const answer = await ask();
  messages.push(answer);
  for (const call of answer.tool_calls ?? []) {
    messages.push({ role: "tool", tool_call_id: call.id, content: "Ghent" });
  }
  if (answer.content) texts.push(answer.content);
}
const other = { headers: { "x-turnfold-session": `${session}-r` } };
const asked = { model: "gpt-4.1", input: "And now?", store: false };
texts.push((await client.responses.create(asked, other)).output_text);
const items = await client.responses.create({ ...asked, stream: true }, other);
for await (const event of items) {
  if (event.type === "response.completed") texts.push(event.response.output[0].content[0].text);
}
const models = [];
for await (const model of client.models.list()) models.push(model.id);
console.log(JSON.stringify({ texts, models }));
