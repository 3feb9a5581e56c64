// The chat: connects the store, the list, the messages and the engine's steps.

import {Api} from "./api.js";
import {Banner} from "./banner.js";
import {ChatList} from "./chat_list.js";
import {ChatSettings} from "./chat_settings.js";
import {ChatStore} from "./chat_store.js";
import {Completion} from "./completion.js";
import {Composer} from "./composer.js";
import {Conversation} from "./conversation.js";
import {openDialog, showExplanation} from "./dialog.js";
import {byId, element} from "./dom.js";
import {Feed} from "./feed.js";
import {drawGlyphs} from "./icons.js";
import {KeyScreen} from "./key_screen.js";
import {LiveStrip} from "./live_strip.js";
import {ServerWatch} from "./server_watch.js";
import {Talk} from "./talk.js";
import {showToast} from "./toast.js";

const SAVE_MS = 1000;
const MAX_OWN = 64;  // requests of this page that the strip knows

class Chat {
  constructor() {
    this.api = new Api();
    this.store = new ChatStore();
    this.banner = new Banner(() => this.watch.poke());
    this.watch = new ServerWatch((kind, seconds) => this.banner.show(kind, seconds));
    this.feed = new Feed(this.api, this.watch, {isExtra: true});
    this.strip = new LiveStrip(byId("live-strip"), byId("live-words"));
    this.keys = new KeyScreen(this.api, () => this.begin());
    this.runs = new Map();  // chat's id → {conversation, completion, message} while an answer comes
    this.own = new Set();
    this.model = null;
    this.isPlain = false;  // a model without a chat template continues text
    this.isDirty = true;
    this.settings = new ChatSettings({onSystem: (text) => this.setSystem(text), onRemoveAll: () => this.removeAll()});
    this.conversation = Conversation.fresh(this.settings.system);
    this.talk = new Talk({edit: (node) => this.edit(node), retry: (node) => this.retry(node), show: (node) => this.showBranch(node),
      explain: (node) => this.explain(node), words: ({kept}) => this.api.json(`result/${kept.id}/tokens?top=8`, {isExtra: true}), goOn: (node, at, word) => this.goOn(node, at, word), resume: (node) => this.resume(node), stopThinking: () => this.stopThinking(), isLast: (node) => node.id === this.conversation.chat.leaf,
      answerCalls: (node, texts) => this.answerCalls(node, texts)});
    this.composer = new Composer({onSend: (text, files) => this.send(text, files), onStop: () => this.stop(), onFault: (text) => showToast(text)});
    this.list = new ChatList(this.store, {current: () => this.conversation.chat.id, onOpen: (chat) => this.open(chat),
      onRemoved: (chat) => this.forget(chat), onRenamed: (chat) => this.renamed(chat), toast: showToast});
  }

  async start() {
    drawGlyphs();
    this.listen();
    this.watch.follow();
    this.feed.follow();
    await this.store.open();
    await this.list.refresh();
    this.openFromAddress();
    this.draw();
    await this.begin();
  }

  listen() {
    byId("new-chat").addEventListener("click", () => this.fresh());
    byId("settings").addEventListener("click", () => this.settings.open(this.conversation.chat.system));
    for (const id of ["open-list", "close-list", "shade"]) {
      byId(id).addEventListener("click", () => document.body.classList.toggle("listing", id === "open-list"));
    }
    for (const idea of document.querySelectorAll("#ideas button")) {
      idea.addEventListener("click", () => this.send(idea.dataset.text ?? idea.textContent, []));
    }
    byId("dialog-close").addEventListener("click", () => byId("dialog").close());
    addEventListener("hashchange", () => this.openFromAddress());
    addEventListener("pagehide", () => this.runs.forEach(({conversation}) => this.save(conversation)));
  }

  // Asks the server for its model; the key screen comes if it wants a key.
  async begin() {
    await this.watch.ready();
    this.feed.wake();
    try {
      [this.model] = (await this.api.json("v1/models")).data;
    } catch (error) {
      if (error.status === 401) return;
      setTimeout(() => this.begin(), 1000);
      return;
    }
    const props = await this.api.json("props", {isExtra: true}).catch(() => null);
    this.isPlain = props?.chat_template === "";
    document.body.classList.toggle("text-mode", this.isPlain);
    byId("model").textContent = this.model.id;
    this.settings.showDefaults(this.model.default_sampling_params ?? {});
    this.changed();
    this.readPending();
    this.composer.area.focus();
  }

  // Reads answers on that came when an earlier page ended.
  readPending() {
    for (const chat of this.list.chats) {
      const conversation = chat.id === this.conversation.chat.id ? this.conversation : new Conversation(structuredClone(chat));
      const message = conversation.chat.nodes.find((node) => node.pending);
      if (message && !this.runs.has(chat.id)) this.follow(conversation, message, (completion) => completion.readAgain());
    }
  }

  openFromAddress() {
    const id = /^#chat=(\w+)$/.exec(location.hash)?.[1];
    const chat = this.list.chats.find((other) => other.id === id);
    if (chat && id !== this.conversation.chat.id) this.open(chat);
  }

  fresh() {
    this.show(Conversation.fresh(this.settings.system));
    history.replaceState(null, "", location.pathname);
    this.composer.area.focus();
  }

  open(chat) {
    this.show(this.runs.get(chat.id)?.conversation ?? new Conversation(structuredClone(chat)));
    history.replaceState(null, "", `#chat=${chat.id}`);
  }

  show(conversation) {
    this.conversation = conversation;
    document.body.classList.remove("listing");
    this.list.draw();
    this.changed();
  }

  renamed(chat) {
    if (chat.id === this.conversation.chat.id) this.conversation.chat.title = chat.title;
    this.changed();
  }

  forget(chat) {
    this.runs.get(chat.id)?.completion.stop();
    this.runs.delete(chat.id);
    for (const {kept} of chat.nodes) if (kept) this.api.fetch(`result/${kept.id}`, {method: "DELETE", isExtra: true}).catch(() => null);
    if (chat.id === this.conversation.chat.id) this.fresh();
  }

  async removeAll() {
    if (!confirm("Delete all chats of this browser?")) return;
    for (const chat of this.list.chats) {
      await this.store.remove(chat.id);
      this.forget(chat);
    }
    await this.list.refresh();
  }

  setSystem(text) {
    this.conversation.chat.system = text;
    this.talk.key = null;
    if (!this.conversation.isEmpty) this.save(this.conversation);
    this.changed();
  }

  // Returns false if nothing can be sent now.
  send(text, files) {
    const {conversation} = this;
    if (!this.model || this.watch.kind !== "ready" || this.runs.has(conversation.chat.id)) return false;
    this.answer(conversation, conversation.add(conversation.chat.leaf, {role: "user", content: text, ...(files.length ? {files} : {})}).id);
    return true;
  }

  edit(node) {
    if (this.isBusy) return;
    this.talk.edit(node, (text) => {
      const {id} = this.conversation.add(node.parent, {role: "user", content: text, ...(node.files ? {files: node.files} : {})});
      this.answer(this.conversation, id);
    });
  }

  retry(node) {
    if (!this.isBusy) this.answer(this.conversation, node.parent);
  }

  // Begins a branch that leaves an answer at one of its words, with another in its place.
  goOn(node, at, word) {
    if (this.isBusy) return;
    const message = this.conversation.fork(node, at, word.text);
    this.follow(this.conversation, message, (completion) => completion.fork({seq_id: node.kept.id, at, append_token_ids: [word.token_id]}));
  }

  answerCalls(node, texts) {
    let parent = node.id;
    node.tools.forEach((call, index) => {
      parent = this.conversation.add(parent, {role: "tool", call: call.id, name: call.name, content: texts[index]}).id;
    });
    this.answer(this.conversation, parent);
  }

  get isBusy() {
    return this.runs.has(this.conversation.chat.id);
  }

  // Lets a cut answer go on: the prompt ends with its own words.
  resume(node) {
    if (this.isBusy) return;
    for (const name of ["error", "finish", "stats", "explanation", "pending", "kept"]) delete node[name];
    this.answer(this.conversation, node.parent, {content: node.content.replace(/\ufffd+$/, "")}, node);
  }

  answer(conversation, parent, begun = {}, message = conversation.add(parent, {role: "assistant"})) {
    Object.assign(message, begun);
    const [path, body] = conversation.question(message, {isPlain: this.isPlain, settings: {model: this.model.id, ...this.settings.body()}});
    return this.follow(conversation, message, (completion) => completion.read(path, body));
  }

  async follow(conversation, message, read) {
    const {chat} = conversation;
    const completion = new Completion(this.api, message, {onChange: () => this.grew(conversation, completion), onBegun: () => this.store.put(chat)});
    this.runs.set(chat.id, {conversation, completion, message, saved: 0});
    this.talk.isAtEnd = true;
    if (conversation === this.conversation) history.replaceState(null, "", `#chat=${chat.id}`);
    this.save(conversation);
    this.changed();
    for (let isThere = await read(completion); !isThere;) {
      this.watch.suspect();
      if (!message.pending) break;
      await this.watch.ready();
      isThere = await completion.readAgain();
    }
    const ended = completion.end({isKept: this.settings.values.chances});
    if (this.runs.get(chat.id)?.message === message) {
      this.runs.delete(chat.id);
      await this.save(conversation);
    }
    await ended;
    this.changed();
  }

  grew(conversation, completion) {
    if (completion.seqId) this.own.add(completion.seqId);
    if (this.own.size > MAX_OWN) this.own.delete(this.own.values().next().value);
    const run = this.runs.get(conversation.chat.id);
    if (run && performance.now() - run.saved > SAVE_MS) {
      run.saved = performance.now();
      this.store.put(conversation.chat);
    }
    this.changed();
  }

  stop() {
    this.runs.get(this.conversation.chat.id)?.completion.stop();
  }

  stopThinking() {
    this.runs.get(this.conversation.chat.id)?.completion.stopThinking().catch((error) => showToast(error.message));
  }

  showBranch(node) {
    this.conversation.show(node);
    this.save(this.conversation);
    this.changed();
  }

  explain(node) {
    try {
      showExplanation("Where the time of this answer went", node.explanation);
    } catch {
      openDialog("No explanation", element("p", {}, "The explanation of this answer is damaged."));
    }
  }

  async save(conversation) {
    await this.store.put(conversation.chat);
    await this.list.refresh();
  }

  changed() {
    this.isDirty = true;
  }

  draw() {
    requestAnimationFrame(() => this.draw());
    this.strip.draw(this.feed.run, this.own, this.feed.isOpen);
    if (!this.isDirty) return;
    this.isDirty = false;
    const {conversation} = this;
    const running = this.runs.get(conversation.chat.id);
    byId("title").textContent = conversation.chat.title || "New chat";
    document.title = conversation.chat.title ? `${conversation.chat.title} · splitfuse` : "splitfuse";
    this.talk.show(conversation, running?.message ?? null);
    this.composer.setRunning(Boolean(running));
  }
}

new Chat().start();
