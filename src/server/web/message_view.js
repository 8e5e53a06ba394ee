// How one turn of the conversation looks.

import { describe } from "./answer.js";
import { copyButton, element } from "./dom.js";
import { renderMarkdown } from "./markdown.js";

export function userView(text) {
  return element("article", { class: "user", "aria-label": "You" }, element("p", { class: "plain" }, text));
}

export function toolResultView(name, text) {
  const body = element("pre", { tabindex: "0" }, text);
  return element("article", { class: "tool-result", "aria-label": `Result of ${name}` }, `Result of ${name}`, body);
}

export function errorView(message, retry) {
  const actions = element("div", { class: "actions" });
  if (retry) actions.append(element("button", { type: "button", onclick: retry }, "Try again"));
  return element("article", { class: "error", role: "alert" }, element("p", { class: "plain" }, message), actions);
}

// The view of an Answer; update() shows what the answer has become, finish() adds what can be done with it.
export class AnswerView {
  root = element("article", { class: "assistant", "aria-label": "Answer", "aria-busy": "true" });
  #thinking = element("details", { class: "thinking", hidden: true });
  #summary = element("summary", {}, "Thinking");
  #thought = element("div", { class: "plain" });
  #content = element("div", { class: "content" });
  #calls = element("div", { class: "calls" });
  #foot = element("footer");
  #shown = { reasoning: "", content: "", calls: "" };

  constructor() {
    this.#thinking.append(this.#summary, this.#thought);
    this.root.append(this.#thinking, this.#content, this.#calls, this.#foot);
  }

  update(answer) {
    const waiting = answer.content === "" && answer.calls.length === 0;
    if (answer.reasoning !== this.#shown.reasoning) {
      this.#thinking.hidden = false;
      this.#thought.textContent = this.#shown.reasoning = answer.reasoning;
    }
    this.#summary.textContent = waiting && !answer.finish ? "Thinking…" : "Thinking";
    if (answer.content !== this.#shown.content) {
      this.#shown.content = answer.content;
      this.#content.replaceChildren(renderMarkdown(answer.content));
    }
    const calls = JSON.stringify(answer.calls);
    if (calls !== this.#shown.calls) {
      this.#shown.calls = calls;
      this.#calls.replaceChildren(...answer.calls.map(callView));
    }
  }

  // `stopped`: by the user.
  finish(answer, stopped, regenerate) {
    this.update(answer);
    this.root.removeAttribute("aria-busy");
    this.#summary.textContent = "Thinking";
    const figures = answer.figures();
    const notes = figures.tokens > 0 ? [describe(figures)] : [];
    if (stopped) notes.push("stopped");
    if (answer.finish === "length") notes.push("cut by the token limit");
    const actions = element(
      "div",
      { class: "actions" },
      copyButton(() => answer.content || answer.reasoning),
      element("button", { type: "button", class: "quiet regenerate", onclick: regenerate }, "Regenerate"),
    );
    this.#foot.replaceChildren(element("span", { class: "figures" }, notes.join(" · ")), actions);
  }
}

function callView(call) {
  return element(
    "section",
    { class: "call", "aria-label": `Call of ${call.name}` },
    element("h3", {}, element("code", {}, call.name)),
    element("pre", { tabindex: "0" }, pretty(call.arguments)),
  );
}

function pretty(text) {
  try {
    return JSON.stringify(JSON.parse(text), null, 2);
  } catch {
    return text; // still coming
  }
}

// A form for the results of calls; `send` gets the texts in the order of the calls.
export function resultForm(calls, send) {
  const fields = calls.map((call) =>
    element("textarea", { rows: "2", class: "code", spellcheck: "false", "aria-label": `Result of ${call.name}` }),
  );
  const labelled = calls.map((call, i) => element("label", {}, `Result of ${call.name}`, fields[i]));
  const submit = element("button", { type: "submit" }, calls.length > 1 ? "Send results" : "Send result");
  const onsubmit = (event) => {
    event.preventDefault();
    send(fields.map((field) => field.value));
  };
  return element("form", { class: "results", onsubmit }, ...labelled, submit);
}
