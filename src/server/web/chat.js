// The page: conversation, composer, and what happens between them.

import { Answer, describe } from "./answer.js";
import { ApiError, firstModel, streamAnswer } from "./api.js";
import { byId, element } from "./dom.js";
import { EXAMPLES } from "./examples.js";
import { AnswerView, errorView, resultForm, toolResultView, userView } from "./message_view.js";
import { SettingError, Settings } from "./settings.js";
import { load, save } from "./store.js";

const SHOW_EVERY_MS = 50; // while an answer comes
const NEAR_END_PX = 80; // of the log: then it follows the answer

const log = byId("log");
const input = byId("input");
const settings = new Settings();
const welcome = byId("welcome");

let model = null; // {name, context}
let messages = []; // as the API takes them, without the system prompt
let running = null; // AbortController of the answer that comes
let afterKey = null; // what the key was needed for

function say(text) {
  byId("status").textContent = text;
}

function show(view) {
  const follows = log.scrollHeight - log.scrollTop - log.clientHeight < NEAR_END_PX;
  log.append(view);
  if (follows) log.scrollTop = log.scrollHeight;
}

function setRunning(controller) {
  running = controller;
  byId("status").setAttribute("aria-busy", String(controller !== null));
  byId("send").hidden = controller !== null;
  byId("stop").hidden = controller === null;
}

// ---- The conversation

function keep() {
  save("messages", messages);
}

function clearLog() {
  log.replaceChildren(welcome);
  welcome.hidden = messages.length > 0;
}

// What does not belong to the conversation: forms, errors.
function removeTransient() {
  for (const view of log.querySelectorAll(".results, .error")) view.remove();
}

function restore() {
  messages = load("messages", []);
  clearLog();
  const names = new Map(); // of calls, by id
  let open = []; // calls without results
  for (const [at, message] of messages.entries()) {
    if (message.role !== "tool") open = [];
    if (message.role === "user") show(userView(message.content));
    if (message.role === "tool") show(toolResultView(names.get(message.tool_call_id) ?? "a tool", message.content));
    if (message.role !== "assistant") continue;
    const answer = new Answer();
    answer.reasoning = message.reasoning_content ?? "";
    answer.content = message.content;
    answer.calls = (message.tool_calls ?? []).map(({ id, function: call }) => ({ id, ...call }));
    for (const call of answer.calls) names.set(call.id, call.name);
    const view = new AnswerView();
    view.root.dataset.at = at;
    view.finish(answer, false, () => regenerate(view.root));
    show(view.root);
    open = answer.calls;
  }
  if (open.length > 0 && messages.at(-1).role === "assistant") offerResults(open);
  log.scrollTop = log.scrollHeight;
}

function ask(text) {
  if (running || text.trim() === "") return;
  removeTransient();
  welcome.hidden = true;
  messages.push({ role: "user", content: text });
  show(userView(text));
  log.scrollTop = log.scrollHeight;
  answerNow();
}

// Takes the last answer back and asks again. What follows it goes as well.
function regenerate(view) {
  if (running) return;
  removeTransient();
  while (view.nextSibling) view.nextSibling.remove();
  view.remove();
  messages.length = Number(view.dataset.at);
  answerNow();
}

function offerResults(calls) {
  const form = resultForm(calls, (results) => {
    if (running) return;
    removeTransient();
    calls.forEach((call, i) => {
      messages.push({ role: "tool", tool_call_id: call.id, content: results[i] });
      show(toolResultView(call.name, results[i]));
    });
    answerNow();
  });
  show(form);
  form.querySelector("textarea").focus();
}

async function answerNow() {
  keep();
  let request;
  try {
    request = settings.request(model?.name, messages);
  } catch (error) {
    if (!(error instanceof SettingError)) throw error;
    show(errorView(error.message, retry));
    openSettings(true);
    return;
  }
  const conversation = messages;
  const controller = new AbortController();
  setRunning(controller);
  const answer = new Answer();
  const view = new AnswerView();
  view.root.dataset.at = messages.length;
  show(view.root);
  say("Waiting…");
  const follow = setInterval(() => refresh(view, answer), SHOW_EVERY_MS);
  let failure = null;
  try {
    for await (const chunk of streamAnswer(request, settings.key, controller.signal)) answer.take(chunk);
  } catch (error) {
    if (error.name !== "AbortError") failure = error;
  }
  clearInterval(follow);
  setRunning(null);
  if (conversation !== messages) return; // a new chat has begun
  finish(view, answer, controller.signal.aborted, failure);
}

function refresh(view, answer) {
  const follows = log.scrollHeight - log.scrollTop - log.clientHeight < NEAR_END_PX;
  view.update(answer);
  const figures = answer.figures();
  if (figures.tokens > 0) say(describe(figures));
  if (follows) log.scrollTop = log.scrollHeight;
}

function finish(view, answer, stopped, failure) {
  if (answer.finish !== "tool_calls") answer.dropIncompleteCalls();
  refresh(view, answer);
  const empty = !answer.reasoning && !answer.content && answer.calls.length === 0;
  if (empty && (failure || stopped)) {
    view.root.remove();
  } else {
    messages.push(answer.message());
    view.finish(answer, stopped, () => regenerate(view.root));
    keep();
  }
  if (!failure) {
    say(stopped ? "Stopped." : "");
    if (answer.calls.length > 0) offerResults(answer.calls);
    return;
  }
  say("");
  if (!(failure instanceof ApiError)) console.error(failure);
  const again = empty ? retry : () => regenerate(view.root);
  show(errorView(failure.message, again));
  if (failure.status === 401) askForKey(failure.message, again);
}

function retry() {
  if (running) return;
  removeTransient();
  answerNow();
}

// ---- Key, model

function askForKey(reason, then) {
  afterKey = then;
  byId("key-reason").textContent = `${reason} The key is kept in this tab only.`;
  byId("key-input").value = settings.key;
  if (!byId("key-dialog").open) byId("key-dialog").showModal();
}

byId("key-form").addEventListener("submit", () => {
  settings.key = byId("key-input").value;
  afterKey?.();
});

async function readModel() {
  try {
    model = await firstModel(settings.key);
    byId("model").textContent = `${model.name} · ${model.context.toLocaleString("en")} tokens of context`;
    document.title = `${model.name} · mimo`;
    say("");
  } catch (error) {
    if (error.status === 401) {
      askForKey(settings.key ? "The server refuses this key." : "This server asks for a key.", readModel);
    } else {
      say(error.message);
      if (error.status === 503) setTimeout(readModel, 1000); // the model is loading
    }
  }
}

byId("settings-form").elements.key.addEventListener("change", readModel);

// ---- Composer

function fitInput() {
  input.style.height = "auto";
  input.style.height = `${Math.min(input.scrollHeight + 2, window.innerHeight / 3)}px`;
}

input.addEventListener("input", fitInput);
input.addEventListener("keydown", (event) => {
  // While an input method composes a word, Enter belongs to it.
  if (event.key !== "Enter" || event.shiftKey || event.isComposing) return;
  event.preventDefault();
  byId("composer").requestSubmit();
});

byId("composer").addEventListener("submit", (event) => {
  event.preventDefault();
  if (running) return;
  const text = input.value;
  if (text.trim() === "") return;
  input.value = "";
  fitInput();
  ask(text);
});

byId("stop").addEventListener("click", () => {
  running?.abort();
  input.focus();
});

// Escape stops the answer, else closes the settings.
document.addEventListener("keydown", (event) => {
  if (event.key !== "Escape" || byId("key-dialog").open) return;
  if (running) {
    running.abort();
  } else {
    openSettings(false);
  }
});

byId("new-chat").addEventListener("click", () => {
  running?.abort();
  messages = [];
  keep();
  clearLog();
  say("");
  input.focus();
});

// ---- Settings panel

function openSettings(open) {
  byId("settings").hidden = !open;
  byId("open-settings").setAttribute("aria-expanded", String(open));
  save("settings-open", open);
}

byId("open-settings").addEventListener("click", () => openSettings(byId("settings").hidden));
byId("close-settings").addEventListener("click", () => {
  openSettings(false);
  byId("open-settings").focus();
});

// ---- Start

for (const { text, tools, note } of EXAMPLES) {
  const onclick = () => {
    if (tools) settings.tools = tools;
    ask(text);
  };
  const label = note ? [text, " ", element("small", {}, note)] : [text];
  byId("examples").append(element("button", { type: "button", onclick }, ...label));
}
openSettings(load("settings-open", false));
restore();
readModel();
