// The two calls that the page makes. Addresses are relative, so that the page works behind a proxy's path too.

import { eventsOf } from "./sse.js";

export class ApiError extends Error {
  constructor(message, status = 0) {
    super(message);
    this.status = status; // 0: there was no answer, or it broke off
  }
}

const headersWith = (key) => (key ? { Authorization: `Bearer ${key}` } : {});

async function send(path, options) {
  let reply;
  try {
    reply = await fetch(new URL(path, document.baseURI), { cache: "no-store", credentials: "omit", ...options });
  } catch (error) {
    if (error.name === "AbortError") throw error;
    throw new ApiError("The server cannot be reached.");
  }
  if (reply.ok) return reply;
  const text = await reply.text().catch(() => "");
  throw new ApiError(messageOf(text) || `The server answered with status ${reply.status}.`, reply.status);
}

function messageOf(text) {
  try {
    return JSON.parse(text).error.message;
  } catch {
    return "";
  }
}

export async function firstModel(key) {
  const reply = await send("v1/models", { headers: headersWith(key) });
  const { data } = await reply.json();
  return { name: data[0].id, context: data[0].max_model_len };
}

// Yields the parsed chunks of the stream. Throws ApiError, or AbortError when `signal` says so.
export async function* streamAnswer(request, key, signal) {
  const reply = await send("v1/chat/completions", {
    method: "POST",
    headers: { "Content-Type": "application/json", ...headersWith(key) },
    body: JSON.stringify({
      ...request,
      stream: true,
      stream_options: { include_usage: true, continuous_usage_stats: true },
      timings: true,
    }),
    signal,
  });
  try {
    for await (const data of eventsOf(reply.body)) {
      if (data === "[DONE]") return;
      const chunk = JSON.parse(data);
      if (chunk.error) throw new ApiError(chunk.error.message, reply.status);
      yield chunk;
    }
  } catch (error) {
    if (error.name === "AbortError" || error instanceof ApiError) throw error;
  }
  throw new ApiError("The connection was lost before the answer was complete.");
}
