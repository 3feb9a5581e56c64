// The branches of an answer as a tree: each stands below the one that it left, with the word by which it did.

import {shown} from "./chances.js";
import {element} from "./dom.js";

// Returns the tree, if an answer has forks.
export function branchTree(node, siblings, onShow) {
  const forks = Map.groupBy(siblings, ({fork}) => fork?.from);
  const list = (branches = []) => branches.length ? [element("ul", {}, ...branches.map(item))] : [];
  const item = (branch, place) => {
    const {fork} = branch;
    const label = fork ? `${shown(fork.text)} at word ${fork.at + 1}` : `Answer ${place + 1}`;
    return element("li", {}, element("button", {type: "button", className: "link", ariaCurrent: branch === node ? "true" : null, onclick: () => onShow(branch)}, label),
      ...list(forks.get(branch.id)));
  };
  return forks.size > 1 ? [element("nav", {className: "tree", ariaLabel: "Branches of this answer"}, ...list(forks.get(undefined)))] : [];
}
