// A subset of LaTeX's mathematics to MathML: fractions, roots, sums, scripts, matrices, Greek. What is unknown stays text.

const NAMESPACE = "http://www.w3.org/1998/Math/MathML";
const MAX_CHARS = 4000;
const MATH_DEPTH = 30;
const GREEK = "alpha α beta β gamma γ delta δ epsilon ϵ varepsilon ε zeta ζ eta η theta θ vartheta ϑ iota ι kappa κ lambda λ " +
  "mu μ nu ν xi ξ pi π rho ρ sigma σ tau τ upsilon υ phi ϕ varphi φ chi χ psi ψ omega ω Gamma Γ Delta Δ Theta Θ Lambda Λ " +
  "Xi Ξ Pi Π Sigma Σ Upsilon Υ Phi Φ Psi Ψ Omega Ω Re ℜ Im ℑ angle ∠ top ⊤ bot ⊥ dagger † infty ∞ partial ∂ nabla ∇ hbar ℏ ell ℓ emptyset ∅ aleph ℵ";
const SIGNS = "cdot ⋅ times × div ÷ pm ± mp ∓ le ≤ leq ≤ ge ≥ geq ≥ ne ≠ neq ≠ approx ≈ equiv ≡ sim ∼ propto ∝ in ∈ notin ∉ " +
  "subset ⊂ subseteq ⊆ supset ⊃ supseteq ⊇ setminus ∖ ll ≪ gg ≫ cong ≅ simeq ≃ parallel ∥ therefore ∴ because ∵ cup ∪ cap ∩ to → rightarrow → leftarrow ← Rightarrow ⇒ implies ⇒ longrightarrow ⟶ Longrightarrow ⟹ uparrow ↑ downarrow ↓ leftrightarrow ↔ Leftrightarrow ⇔ iff ⇔ mapsto ↦ " +
  "forall ∀ exists ∃ neg ¬ land ∧ lor ∨ ldots … cdots ⋯ dots … vdots ⋮ ddots ⋱ mid ∣ langle ⟨ rangle ⟩ lfloor ⌊ rfloor ⌋ " +
  "lceil ⌈ rceil ⌉ circ ∘ ast ∗ star ⋆ oplus ⊕ otimes ⊗ perp ⊥ prime ′ quad \u2003 qquad \u2003\u2003 lbrace { rbrace } { { } } % % # # & & _ _ | ∥";
const LARGE = "sum ∑ prod ∏ int ∫ iint ∬ iiint ∭ oint ∮ bigcup ⋃ bigcap ⋂ lim lim max max min min sup sup inf inf";
const FUNCTIONS = "sin cos tan cot sec csc arcsin arccos arctan sinh cosh tanh log ln exp det dim ker gcd deg arg Pr".split(" ");
const SPACES = {",": "0.17em", ":": "0.22em", ";": "0.28em", "!": "0em", " ": "0.3em"};
const ACCENTS = {hat: "^", widehat: "^", bar: "¯", overline: "¯", vec: "→", overrightarrow: "→", tilde: "~", widetilde: "~", dot: "˙", ddot: "¨"};
const BRACES = {underbrace: "⏟", overbrace: "⏞", underline: "_"};
// First code points of A, a and 0 in each style, and letters that stand elsewhere: browsers take no mathvariant.
const STYLES = {mathrm: [], operatorname: [], textbf: [0x1d400, 0x1d41a, 0x1d7ce], mathbf: [0x1d400, 0x1d41a, 0x1d7ce], boldsymbol: [0x1d400, 0x1d41a, 0x1d7ce],
  mathbb: [0x1d538, 0x1d552, 0x1d7d8, "CℂHℍNℕPℙQℚRℝZℤ"], mathcal: [0x1d49c, 0x1d4b6, 0, "BℬEℰFℱHℋIℐLℒMℳRℛeℯgℊoℴ"], mathfrak: [0x1d504, 0x1d51e, 0, "CℭHℌIℑRℜZℨ"]};
const FENCES = {pmatrix: ["(", ")"], bmatrix: ["[", "]"], Bmatrix: ["{", "}"], vmatrix: ["|", "|"], Vmatrix: ["∥", "∥"], cases: ["{", ""],
  ...Object.fromEntries(["matrix", "aligned", "align", "gathered", "split"].map((name) => [name, ["", ""]]))};
const tableOf = (words) => new Map(words.split(" ").flatMap((word, index, all) => (index % 2 ? [] : [[word, all[index + 1]]])));
const [GREEK_OF, SIGN_OF, LARGE_OF] = [GREEK, SIGNS, LARGE].map(tableOf);
const TOKEN = /\\([A-Za-z]+|[^])|\d+(?:\.\d+)?|\s+|[^]/g;

function node(name, properties, ...children) {
  const made = document.createElementNS(NAMESPACE, name);
  for (const [key, value] of Object.entries(properties)) made.setAttribute(key, value);
  made.append(...children);
  return made;
}

// A math element, or null where the source is no formula of this subset: then it stays text.
export function mathNode(source, isDisplay) {
  if (source.length > MAX_CHARS) return null;
  try {
    const reader = new Reader(source);
    const row = reader.row(() => reader.isAtEnd, 0);
    return node("math", {display: isDisplay ? "block" : "inline", "aria-label": source.trim()}, row);
  } catch (error) {
    if (error instanceof SyntaxError) return null;
    throw error;
  }
}

class Reader {
  constructor(source) {
    this.tokens = source.match(TOKEN) ?? [];
    this.at = 0;
  }

  get isAtEnd() { return this.next === undefined; }

  get next() {
    while (/^\s+$/.test(this.tokens[this.at] ?? "")) this.at += 1;
    return this.tokens[this.at];
  }

  expect(token) {
    if (this.next !== token) throw new SyntaxError(`no ${token}`);
    this.at += 1;
  }

  row(ends, depth) {
    if (depth > MATH_DEPTH) throw new SyntaxError("too deep");
    const nodes = [];
    while (!ends()) {
      if (this.isAtEnd) throw new SyntaxError("it ends early");
      nodes.push(this.scripted(depth));
    }
    return nodes.length === 1 ? nodes[0] : node("mrow", {}, ...nodes);
  }

  scripted(depth) {
    const isLarge = LARGE_OF.has((this.next ?? "").slice(1)) && !/int/.test(this.next);
    const isBrace = (this.next ?? "").slice(1) in BRACES;
    const base = this.atom(depth);
    if (this.next === "\\limits") this.at += 1;
    const scripts = {};
    while (["_", "^", "'"].includes(this.next)) {
      const mark = this.tokens[this.at++];
      const key = mark === "_" ? "under" : "over";
      if (scripts[key]) throw new SyntaxError("two scripts");
      let primes = "′";
      for (; mark === "'" && this.tokens[this.at] === "'"; this.at += 1) primes += "′";
      scripts[key] = mark === "'" ? node("mo", {}, primes) : this.argument(depth + 1);
    }
    const {under, over} = scripts;
    if (under && over) return node(isLarge ? "munderover" : "msubsup", {}, base, under, over);
    if (under) return node(isLarge || isBrace ? "munder" : "msub", {}, base, under);
    return over ? node(isLarge || isBrace ? "mover" : "msup", {}, base, over) : base;
  }

  group(depth) {
    this.expect("{");
    const row = this.row(() => this.next === "}", depth + 1);
    this.at += 1;
    return row;
  }

  text() {
    this.expect("{");
    let words = "";
    while (this.tokens[this.at] !== "}") {
      if (this.at >= this.tokens.length) throw new SyntaxError("it ends early");
      words += this.tokens[this.at++].replace(/^\\ $/, " ");
    }
    this.at += 1;
    return words;
  }

  // TeX takes one digit: \frac12 is a half, x^23 is x² 3.
  argument(depth) {
    if (/^\d./.test(this.next ?? "")) {
      const token = this.next;
      this.tokens.splice(this.at, 1, token[0], token.slice(1));
    }
    return this.atom(depth);
  }

  atom(depth) {
    if (this.isAtEnd || depth > MATH_DEPTH) throw new SyntaxError("nothing is here");
    const token = this.next;
    if (token === "{") return this.group(depth);
    if (["}", "_", "^", "&", "\\\\"].includes(token)) throw new SyntaxError(token);
    this.at += 1;
    if (token.length > 1 && token[0] === "\\") return this.command(token.slice(1), depth);
    if (/\d/.test(token[0])) return node("mn", {}, token);
    return node(/\p{L}/u.test(token) ? "mi" : "mo", {}, token === "-" ? "−" : token);
  }

  command(name, depth) {
    if (["frac", "dfrac", "tfrac"].includes(name)) return node("mfrac", {}, this.argument(depth + 1), this.argument(depth + 1));
    if (name === "binom") {
      const [over, under] = [this.argument(depth + 1), this.argument(depth + 1)];
      return node("mrow", {}, node("mo", {}, "("), node("mfrac", {linethickness: "0"}, over, under), node("mo", {}, ")"));
    }
    if (name === "sqrt") return this.root(depth);
    if (name === "begin") return this.matrix(depth);
    if (name === "left") return this.fenced(depth);
    if (name === "text" || name === "mbox") return node("mtext", {}, this.text());
    if (name in STYLES) return this.styled(STYLES[name], depth);
    if (name in BRACES) return node(name === "overbrace" ? "mover" : "munder", {}, this.atom(depth + 1), node("mo", {}, BRACES[name]));
    if (name === "boxed") return node("mrow", {class: "boxed"}, this.atom(depth + 1));
    if (name === "pmod") return node("mrow", {}, node("mspace", {width: "0.5em"}), node("mo", {}, "("), node("mi", {}, "mod"), node("mspace", {width: "0.3em"}), this.atom(depth + 1), node("mo", {}, ")"));
    if (name === "displaystyle") return node("mrow", {});
    if (name in ACCENTS) return node("mover", {accent: "true"}, this.atom(depth + 1), node("mo", {}, ACCENTS[name]));
    if (name in SPACES) return node("mspace", {width: SPACES[name]});
    if (LARGE_OF.has(name)) return node("mo", {movablelimits: "true"}, LARGE_OF.get(name));
    if (GREEK_OF.has(name)) return node("mi", {}, GREEK_OF.get(name));
    if (FUNCTIONS.includes(name)) return node("mi", {}, name);
    if (SIGN_OF.has(name)) return node("mo", {}, SIGN_OF.get(name));
    throw new SyntaxError(name);
  }

  // Upright words, or letters and digits of a style; what has none there, as Greek, keeps its own form.
  styled([upper, lower, zero, others = ""], depth) {
    if (!upper && this.next === "{") return node("mi", {mathvariant: "normal"}, this.text());
    const inner = this.atom(depth + 1);
    const change = (text) => text.replace(/[A-Za-z0-9]/g, (letter) => {
      const [first, from] = /[A-Z]/.test(letter) ? [upper, "A"] : /[a-z]/.test(letter) ? [lower, "a"] : [zero, "0"];
      const other = others.indexOf(letter);
      return other >= 0 ? others[other + 1] : first ? String.fromCodePoint(first + letter.codePointAt(0) - from.codePointAt(0)) : letter;
    });
    const leaves = inner.children?.length ? inner.querySelectorAll("mi, mn") : [inner];
    for (const leaf of leaves) leaf.textContent = change(leaf.textContent);
    return inner;
  }

  root(depth) {
    if (this.next !== "[") return node("msqrt", {}, this.argument(depth + 1));
    this.at += 1;
    const index = this.row(() => this.next === "]", depth + 1);
    this.at += 1;
    return node("mroot", {}, this.atom(depth + 1), index);
  }

  fence() {
    const token = this.next ?? "";
    this.at += 1;
    return token === "." ? "" : SIGN_OF.get(token.replace(/^\\/, "")) ?? token;
  }

  fenced(depth) {
    const left = this.fence();
    const row = this.row(() => this.next === "\\right", depth + 1);
    this.at += 1;
    return node("mrow", {}, node("mo", {}, left), row, node("mo", {}, this.fence()));
  }

  matrix(depth) {
    const name = this.text();
    const [left, right] = FENCES[name.replace("*", "")] ?? [];
    if (left === undefined) throw new SyntaxError(name);
    const rows = [[]];
    for (;;) {
      const cell = this.row(() => ["&", "\\\\", "\\end"].includes(this.next), depth + 1);
      rows.at(-1).push(node("mtd", {}, cell));
      const end = this.tokens[this.at++];
      if (end === "\\\\") rows.push([]);
      if (end === "\\end") break;
    }
    if (this.text() !== name) throw new SyntaxError(name);
    const table = node("mtable", {}, ...rows.map((cells) => node("mtr", {}, ...cells)));
    return node("mrow", {}, node("mo", {}, left), table, node("mo", {}, right));
  }
}
