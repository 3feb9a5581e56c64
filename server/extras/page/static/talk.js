// The shown branch of a chat. New words scroll into view while the reader is at the end.

import {byId, element} from "./dom.js";
import {MessageView} from "./message_view.js";

const NEAR = 80;  // pixels from the end that count as the end

export class Talk {
  constructor(actions) {
    this.actions = actions;
    this.box = byId("talk");
    this.scroller = byId("scroll");
    this.views = new Map();
    this.isAtEnd = true;
    this.focus = null;  // id of a branch that the keyboard chose, to go to its place in the tree
    this.toEnd = byId("to-end");
    this.toEnd.addEventListener("click", () => this.scrollToEnd());
    this.scroller.addEventListener("scroll", () => {
      this.isAtEnd = this.scroller.scrollHeight - this.scroller.scrollTop - this.scroller.clientHeight < NEAR;
      this.toEnd.hidden = this.isAtEnd;
    }, {passive: true});
  }

  // Shows a conversation; `running` is the message that grows, if there is one.
  show(conversation, running) {
    const {path, chat} = conversation;
    const key = [chat.id, ...path.map((node) => node.id)].join();
    if (this.key !== key) this.layOut(conversation, key);
    for (const node of path) this.views.get(node.id).update({siblings: conversation.siblings(node), isRunning: node === running});
    if (this.isAtEnd) this.scrollToEnd();
    const place = this.views.get(this.focus)?.foot.querySelector("[aria-current]");
    if (!place) return;
    this.focus = null;
    if (document.activeElement === document.body) place.focus();
  }

  layOut({path, chat}, key) {
    const isSame = this.shown === chat.id;
    this.key = key;
    this.shown = chat.id;
    if (this.box.contains(document.activeElement)) this.focus = path.find((node) => !this.views.has(node.id))?.id;
    const kept = new Map(path.map((node) => [node.id, this.views.get(node.id) ?? new MessageView(node, this.actions)]));
    this.views = kept;
    const system = chat.system.trim() && path.length ? [element("details", {className: "system"}, element("summary", {}, "System message"),
      element("p", {dir: "auto"}, chat.system))] : [];
    this.box.replaceChildren(...system, ...[...kept.values()].map((view) => view.card));
    document.body.classList.toggle("empty", !path.length);
    if (!isSame) this.isAtEnd = true;
  }

  scrollToEnd() {
    this.isAtEnd = true;
    this.toEnd.hidden = true;
    this.scroller.scrollTo({top: this.scroller.scrollHeight, behavior: "instant"});
  }

  // Puts an editor in the place of a message.
  edit(node, onSave) {
    const {card} = this.views.get(node.id);
    const area = element("textarea", {value: node.content, rows: Math.min(12, node.content.split("\n").length + 1), ariaLabel: "Edit message"});
    const form = element("form", {className: "editor"}, area, element("div", {className: "buttons"},
      element("button", {type: "button", className: "plain", onclick: () => form.replaceWith(card)}, "Cancel"), element("button", {className: "main"}, "Send")));
    form.addEventListener("submit", (event) => {
      event.preventDefault();
      if (area.value.trim()) onSave(area.value);
    });
    area.addEventListener("keydown", (event) => {
      if (event.key === "Escape") form.replaceWith(card);
      if (event.key === "Enter" && !event.shiftKey && !event.isComposing) {
        event.preventDefault();
        form.requestSubmit();
      }
    });
    card.replaceWith(form);
    area.focus();
  }
}
