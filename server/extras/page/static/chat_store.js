// Chats in this browser's IndexedDB, one record each; in memory where the browser has none to give.

const DATABASE = "splitfuse-chats";
const CHATS = "chats";
const FORMAT = "splitfuse chats";

export class ChatStore {
  async open() {
    this.memory = new Map();
    this.database = await new Promise((resolve) => {
      const asked = indexedDB.open(DATABASE, 1);
      asked.onupgradeneeded = () => asked.result.createObjectStore(CHATS, {keyPath: "id"});
      asked.onsuccess = () => resolve(asked.result);
      asked.onerror = asked.onblocked = () => resolve(null);
    }).catch(() => null);
  }

  // Returns all chats, newest first.
  async all() {
    const chats = this.database ? await this.request("readonly", (chats) => chats.getAll()) : [...this.memory.values()];
    return chats.sort((one, other) => other.updated - one.updated);
  }

  async put(chat) {
    const copy = structuredClone(chat);
    if (this.database) await this.request("readwrite", (chats) => chats.put(copy));
    else this.memory.set(chat.id, copy);
  }

  async remove(id) {
    if (this.database) await this.request("readwrite", (chats) => chats.delete(id));
    else this.memory.delete(id);
  }

  request(mode, ask) {
    return new Promise((resolve, reject) => {
      const asked = ask(this.database.transaction(CHATS, mode).objectStore(CHATS));
      asked.onsuccess = () => resolve(asked.result);
      asked.onerror = () => reject(asked.error);
    });
  }
}

export function exportedChats(chats) {
  return JSON.stringify({format: FORMAT, version: 1, chats}, null, 1);
}

// Returns the chats of an exported file, under their own ids. Raises Error.
export function importedChats(text) {
  let data;
  try {
    data = JSON.parse(text);
  } catch {
    throw new Error("This file is no JSON.");
  }
  if (data?.format !== FORMAT || !Array.isArray(data.chats)) throw new Error("This file holds no chats of splitfuse.");
  return data.chats.map(checkedChat);
}

function checkedChat(chat) {
  const isText = (value) => typeof value === "string";
  const ids = new Set();
  const isSound = isText(chat?.id) && isText(chat.title) && Array.isArray(chat.nodes) && chat.nodes.every((node) => {
    const isNode = isText(node?.id) && isText(node.content) && ["user", "assistant", "tool"].includes(node.role) &&
      (node.parent === null || ids.has(node.parent));
    ids.add(node?.id);
    return isNode;
  });
  if (!isSound) throw new Error("A chat in this file is damaged.");
  const leaf = ids.has(chat.leaf) ? chat.leaf : chat.nodes.at(-1)?.id ?? null;
  return {...chat, leaf, system: isText(chat.system) ? chat.system : "", updated: Number(chat.updated) || Date.now(), created: Number(chat.created) || Date.now()};
}
