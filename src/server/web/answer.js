// An assistant's message that is put together from the chunks of a stream, with what is known about its speed.

export class Answer {
  reasoning = "";
  content = "";
  calls = []; // {id, name, arguments: text}
  finish = null;
  usage = null;
  timings = null;

  #began = 0; // when the first tokens came, ms
  #now = 0;
  #first = 0; // tokens that came with the first step
  #steps = 0; // that brought tokens, the first one not counted

  take(chunk) {
    if (chunk.usage) this.#count(chunk.usage);
    if (chunk.timings) this.timings = chunk.timings;
    const choice = chunk.choices[0];
    if (!choice) return;
    const delta = choice.delta;
    this.reasoning += delta.reasoning_content ?? delta.reasoning ?? "";
    this.content += delta.content ?? "";
    for (const part of delta.tool_calls ?? []) {
      const call = (this.calls[part.index] ??= { id: part.id, name: "", arguments: "" });
      call.name += part.function?.name ?? "";
      call.arguments += part.function?.arguments ?? "";
    }
    this.finish = choice.finish_reason ?? this.finish;
  }

  #count(usage) {
    const before = this.usage?.completion_tokens ?? 0;
    this.usage = usage;
    if (usage.completion_tokens <= before) return;
    this.#now = performance.now();
    if (before === 0) {
      this.#began = this.#now;
      this.#first = usage.completion_tokens;
    } else {
      this.#steps += 1;
    }
  }

  // Stopped or cut: a call whose arguments are no JSON is none.
  dropIncompleteCalls() {
    this.calls = this.calls.filter((call) => {
      try {
        JSON.parse(call.arguments);
        return true;
      } catch {
        return false;
      }
    });
  }

  // {tokens, rate, accept}: tokens so far, tokens a second, tokens a step with drafts; the last two null where
  // unknown. The server's own figures when it has sent them; until then what this page has seen, where a step without
  // drafts cannot be told from one with.
  figures() {
    const tokens = this.usage?.completion_tokens ?? 0;
    const later = tokens - this.#first;
    const seconds = (this.#now - this.#began) / 1000;
    const figures = {
      tokens,
      rate: later > 0 && seconds > 0 ? later / seconds : null,
      accept: this.#steps > 0 ? later / this.#steps : null,
    };
    const timings = this.timings;
    if (timings) {
      const decoded = timings.predicted_n - 1; // the first token comes out of the prompt
      if (decoded > 0 && timings.predicted_ms > 0) figures.rate = decoded / (timings.predicted_ms / 1000);
      figures.accept = timings.draft_steps > 0 ? 1 + timings.draft_n_accepted / timings.draft_steps : null;
    }
    return figures;
  }

  // As the API takes it back.
  message() {
    const message = { role: "assistant", content: this.content };
    if (this.reasoning) message.reasoning_content = this.reasoning;
    if (this.calls.length > 0) {
      message.tool_calls = this.calls.map(({ id, name, arguments: text }) => ({
        id,
        type: "function",
        function: { name, arguments: text },
      }));
    }
    return message;
  }
}

// "1,234 tokens · 812 tokens/s · accept length 7.2"
export function describe({ tokens, rate, accept }) {
  const parts = [`${tokens.toLocaleString("en")} token${tokens === 1 ? "" : "s"}`];
  if (rate !== null) parts.push(`${rate.toLocaleString("en", { maximumFractionDigits: rate < 100 ? 1 : 0 })} tokens/s`);
  if (accept !== null && accept > 1.005) parts.push(`accept length ${accept.toFixed(2)}`);
  return parts.join(" · ");
}
