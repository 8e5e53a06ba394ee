// The settings form: kept in this tab, and turned into the fields of a request.

import { byId } from "./dom.js";
import { load, save } from "./store.js";

const NAMES = ["thinking", "temperature", "top_p", "max_tokens", "seed", "system", "tools", "key"];
const NUMBERS = {
  temperature: { label: "Temperature", integer: false },
  top_p: { label: "Top p", integer: false },
  max_tokens: { label: "Max tokens", integer: true },
  seed: { label: "Seed", integer: true },
};

export class SettingError extends Error {}

export class Settings {
  #form = byId("settings-form");

  constructor() {
    this.#fill(load("settings", {}));
    this.#form.addEventListener("input", () => this.#keep());
    this.#form.addEventListener("submit", (event) => event.preventDefault());
    byId("reset-settings").addEventListener("click", () => this.#fill({ key: this.key }));
  }

  #fill(values) {
    for (const name of NAMES) this.#form.elements[name].value = values[name] ?? "";
    this.#keep();
  }

  #keep() {
    save("settings", Object.fromEntries(NAMES.map((name) => [name, this.#form.elements[name].value])));
  }

  #text(name) {
    return this.#form.elements[name].value.trim();
  }

  get key() {
    return this.#text("key");
  }
  set key(value) {
    this.#form.elements.key.value = value;
    this.#keep();
  }

  set tools(list) {
    this.#form.elements.tools.value = JSON.stringify(list, null, 2);
    this.#keep();
  }

  // The request for an answer to `messages`. Throws SettingError where a field cannot be read; its range is the
  // server's business.
  request(model, messages) {
    const system = this.#form.elements.system.value;
    const request = { model, messages: system.trim() ? [{ role: "system", content: system }, ...messages] : messages };
    for (const [name, { label, integer }] of Object.entries(NUMBERS)) {
      const text = this.#text(name).replace(",", ".");
      if (text === "") continue;
      const value = Number(text);
      if (integer ? !Number.isSafeInteger(value) : !Number.isFinite(value)) {
        throw new SettingError(`${label}: "${text}" is not ${integer ? "a whole number" : "a number"}.`);
      }
      request[name] = value;
    }
    const thinking = this.#text("thinking");
    if (thinking) request.chat_template_kwargs = { enable_thinking: thinking === "on" };
    const tools = this.#text("tools");
    if (tools) request.tools = parseTools(tools);
    return request;
  }
}

function parseTools(text) {
  let tools;
  try {
    tools = JSON.parse(text);
  } catch (error) {
    throw new SettingError(`Tools: ${error.message}`);
  }
  if (!Array.isArray(tools)) throw new SettingError("Tools: expected a JSON array.");
  return tools;
}
