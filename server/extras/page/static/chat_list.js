// List of chats: search, rename, delete with undo, export and import.

import {exportedChats, importedChats} from "./chat_store.js";
import {saveFile} from "./clipboard.js";
import {byId, element} from "./dom.js";
import {glyph} from "./icons.js";

const DAY_MS = 86400000;

export class ChatList {
  // `onOpen(chat)`, `onRemoved(chat)`, `onRenamed(chat)`, `toast(text, undo)`
  constructor(store, {current, onOpen, onRemoved, onRenamed, toast}) {
    Object.assign(this, {store, current, onOpen, onRemoved, onRenamed, toast});
    this.chats = [];
    this.box = byId("chats");
    this.search = byId("search");
    this.search.addEventListener("input", () => this.draw());
    byId("export").addEventListener("click", () => this.save(this.chats, "chats"));
    byId("import").addEventListener("click", () => byId("imported").click());
    byId("imported").addEventListener("change", async (event) => {
      const [file] = event.target.files;
      event.target.value = "";
      if (file) await this.load(await file.text()).catch((error) => toast(error.message));
    });
  }

  async refresh() {
    this.chats = await this.store.all();
    this.draw();
  }

  async load(text) {
    const chats = importedChats(text);
    for (const chat of chats) await this.store.put(chat);
    await this.refresh();
    this.toast(`${chats.length} ${chats.length === 1 ? "chat" : "chats"} imported.`);
  }

  save(chats, name) {
    saveFile(`splitfuse-${name}.json`, "application/json", exportedChats(chats));
  }

  draw() {
    const words = this.search.value.toLowerCase().split(/\s+/).filter(Boolean);
    const shown = this.chats.filter((chat) => words.every((word) => textOf(chat).includes(word)));
    const groups = Object.groupBy(shown, (chat) => ageOf(chat.updated));
    const parts = Object.entries(groups).flatMap(([age, chats]) => [element("h2", {}, age), element("ul", {}, ...chats.map((chat) => this.row(chat)))]);
    const nothing = words.length ? "No chat has these words." : "Chats you begin are kept here, in this browser only.";
    this.box.replaceChildren(...(parts.length ? parts : [element("p", {className: "nothing"}, nothing)]));
    byId("export").disabled = !this.chats.length;
  }

  row(chat) {
    const title = chat.title || "New chat";
    const act = (name, label, call) => element("button", {type: "button", className: "plain icon", title: label, ariaLabel: `${label} ${title}`, onclick: call}, glyph(name));
    const open = element("button", {type: "button", className: "plain open", title, onclick: () => this.onOpen(chat)}, title);
    const isCurrent = chat.id === this.current();
    if (isCurrent) open.setAttribute("aria-current", "page");
    const row = element("li", {className: isCurrent ? "current" : ""}, open, element("span", {className: "acts"},
      act("edit", "Rename", () => this.rename(chat, row)), act("save", "Export", () => this.save([chat], "chat")), act("trash", "Delete", () => this.remove(chat))));
    return row;
  }

  rename(chat, row) {
    const field = element("input", {value: chat.title, ariaLabel: "Name of the chat", maxLength: 200});
    let isOver = false;
    const finish = async (isKept) => {
      if (isOver) return;
      isOver = true;
      if (isKept && field.value.trim()) {
        chat.title = field.value.trim();
        await this.store.put(chat);
        this.onRenamed(chat);
      }
      this.draw();
    };
    field.addEventListener("keydown", (event) => {
      event.stopPropagation();
      if (event.key === "Enter" || event.key === "Escape") finish(event.key === "Enter");
    });
    field.addEventListener("blur", () => finish(true));
    row.replaceChildren(field);
    field.select();
  }

  async remove(chat) {
    await this.store.remove(chat.id);
    this.onRemoved(chat);
    await this.refresh();
    this.toast("Chat deleted.", async () => {
      await this.store.put(chat);
      await this.refresh();
    });
  }
}

function textOf(chat) {
  return [chat.title, ...chat.nodes.map((node) => node.content)].join("\n").toLowerCase();
}

function ageOf(time) {
  const days = Math.floor((new Date().setHours(24, 0, 0, 0) - time) / DAY_MS);
  return days < 1 ? "Today" : days < 2 ? "Yesterday" : days < 7 ? "This week" : "Earlier";
}
