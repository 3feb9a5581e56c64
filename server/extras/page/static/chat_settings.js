// Settings of chats, kept in this browser. An empty field leaves the value to the model.

import {byId} from "./dom.js";

const SETTINGS_KEY = "splitfuse-chat-settings";
const FIELDS = ["temperature", "top_p", "top_k", "min_p", "repetition_penalty", "max_tokens", "seed"];
const NEUTRAL = {temperature: 1, top_p: 1, top_k: "off", min_p: 0, repetition_penalty: 1, max_tokens: "what fits", seed: "random"};

export class ChatSettings {
  // `onSystem(text)`: the chat that is open has another system message.
  constructor({onSystem, onRemoveAll}) {
    this.values = readSettings();
    this.dialog = byId("settings-dialog");
    this.form = byId("settings-form");
    this.words = byId("settings-words");
    this.form.addEventListener("submit", (event) => {
      event.preventDefault();
      if (this.take()) {
        onSystem(this.values.system ?? "");
        this.dialog.close();
      }
    });
    byId("settings-reset").addEventListener("click", () => {
      for (const field of this.form.querySelectorAll("input, textarea, select")) field.value = "";
    });
    byId("settings-close").addEventListener("click", () => this.dialog.close());
    byId("remove-all").addEventListener("click", () => {
      this.dialog.close();
      onRemoveAll();
    });
  }

  get system() {
    return this.values.system ?? "";
  }

  open(system) {
    const fields = this.form.elements;
    for (const name of [...FIELDS, "stop", "tools", "chances"]) fields[name].value = this.values[name] ?? "";
    fields.system.value = system;
    this.words.textContent = "";
    this.dialog.showModal();
  }

  // Shows the model's own values where the user has set none.
  showDefaults(params) {
    for (const name of FIELDS) {
      this.form.elements[name].placeholder = params[name] === undefined ? String(NEUTRAL[name]) : `${params[name]} (the model's)`;
    }
  }

  take() {
    const values = {};
    for (const name of [...FIELDS, "stop", "tools", "chances", "system"]) {
      const {value} = this.form.elements[name];
      if (value.trim()) values[name] = value;
    }
    try {
      if (values.tools && !Array.isArray(JSON.parse(values.tools))) throw new Error("no list");
    } catch {
      this.words.textContent = "Tools must be a JSON list, as in OpenAI's API.";
      return false;
    }
    this.values = values;
    localStorage.setItem(SETTINGS_KEY, JSON.stringify(values));
    return true;
  }

  // Fields of a request.
  body() {
    const {values} = this;
    const body = {};
    for (const name of FIELDS) if (values[name] !== undefined) body[name] = Number(values[name]);
    if (values.stop) body.stop = [values.stop];
    if (values.tools) body.tools = JSON.parse(values.tools);
    return body;
  }
}

function readSettings() {
  try {
    return JSON.parse(localStorage.getItem(SETTINGS_KEY)) ?? {};
  } catch {
    return {};
  }
}
