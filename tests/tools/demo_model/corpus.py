"""Seeded text of our own for the demo model: small stories, chats in the chat template, lists and JSON.

A grammar writes the text, so the text is fluent, free of anybody's rights, and gives a meaning to the chat roles,
to the end of a turn and to the closing brace. This module knows nothing of tokens or of training.
"""

import json
import re
from collections.abc import Callable, Iterator
from random import Random
from typing import TypeAlias

from words import (
    ABSTRACT,
    ARRIVALS,
    ASK_STORY,
    BOYS,
    CITIES,
    COLOURS,
    DEEDS,
    ENDINGS,
    EXTRAS,
    FACTS,
    FEMALE,
    FOODS,
    GIRLS,
    GROUPS,
    HARD,
    HEROES,
    HOBBIES,
    JOBS,
    JOKES,
    KINDS,
    MALE,
    NUMBERS,
    OPENINGS,
    PEOPLE,
    PLACES,
    RHYMES,
    SMALL_TALK,
    SYSTEMS,
    TALK,
    THINGS,
    TRAITS,
    TROUBLES,
    WEATHERS,
    WISHES,
)

END_OF_TEXT, END_OF_TURN = "<|endoftext|>", "<|end|>"
SPECIAL_TOKENS = [END_OF_TEXT, "<|system|>", "<|user|>", "<|assistant|>", "<|tool|>", END_OF_TURN]

Slots: TypeAlias = dict[str, str]
Turn: TypeAlias = tuple[str, str]  # question, answer


def pick(rng: Random, words: list[str]) -> str:
    return words[int(rng.random() * len(words))]


def article(words: str) -> str:
    return ("an " if words[0] in "aeiouAEIOU" else "a ") + words


def fill(rng: Random, template: str, slots: Slots) -> str:
    """Expand a template: {slot} becomes its value, [a|b] becomes one side, innermost brackets first."""
    while "[" in template:
        template = re.sub(r"\[([^\[\]]*)\]", lambda match: pick(rng, match[1].split("|")), template)
    text = re.sub(r"\{(\w+)\}", lambda match: slots[match[1]], template)
    return re.sub(r"\b([Aa]) (?=[aeiou])", r"\1n ", text)


def pronouns(kind: str, name: str) -> tuple[str, str, str]:
    """Return subject, object and possessive; an animal goes by its name."""
    female = kind in FEMALE or (kind not in MALE and name in GIRLS)
    return ("she", "her", "her") if female else ("he", "him", "his")


def character(rng: Random, kind: str) -> str:
    return pick(rng, GIRLS if kind in FEMALE else BOYS if kind in MALE else GIRLS + BOYS)


def story_slots(rng: Random, hero: str = "") -> Slots:
    """Draw the characters and things of a story once, so that they stay constant to its end."""
    hero, friend_kind = hero or pick(rng, HEROES + PEOPLE), pick(rng, HEROES + PEOPLE)
    name = character(rng, hero)
    friend = next(other for _ in range(99) if (other := character(rng, friend_kind)) != name)
    he, him, his = pronouns(hero, name)
    fhe, fhim, _ = pronouns(friend_kind, friend)
    place, place2 = rng.sample(PLACES, 2)
    thing, thing2 = rng.sample(THINGS, 2)
    food, food2 = rng.sample(FOODS, 2)
    trait = pick(rng, TRAITS)
    return {
        "hero": hero, "name": name, "friend": friend, "he": he, "him": him, "his": his, "He": he.capitalize(),
        "His": his.capitalize(), "fhe": fhe, "fhim": fhim, "place": place, "place2": place2, "thing": thing,
        "thing2": thing2, "food": food, "food2": food2, "trait": trait, "a_hero": article(f"{trait} {hero}"),
        "a_friend": article(f"{pick(rng, TRAITS)} {friend_kind}"), "colour": pick(rng, COLOURS),
        "weather": pick(rng, WEATHERS),
        "place_cap": place2.capitalize(), "where": pick(rng, ["", f" in {place}", f" near {place}"]),
    }  # fmt: skip


def story(rng: Random, slots: Slots) -> str:
    beats = [OPENINGS, WISHES, TROUBLES, TALK, DEEDS, ENDINGS]
    if rng.random() < 0.4:
        beats[4:4] = [DEEDS, TALK]
    for _ in range(rng.randrange(3)):
        beats.insert(rng.randrange(1, len(beats)), EXTRAS)
    said: list[str] = []
    for beat in beats:  # no sentence is said twice in one story, and nobody speaks before coming in
        frame = pick(rng, [frame for frame in beat if frame not in said])
        if said and "{friend}" in frame and not any("{a_friend}" in other for other in [*said, frame]):
            said.append(ARRIVALS)
        said.append(frame)
    breaks = [rng.choice((" ", " ", "\n\n")) for _ in said]
    return "".join(fill(rng, frame, slots).strip() + gap for frame, gap in zip(said, breaks, strict=True)).strip()


def about(rng: Random) -> tuple[str, Slots]:
    """Return a topic to ask for, and slots that keep the story to the topic."""
    hero = pick(rng, HEROES + PEOPLE)
    slots = story_slots(rng, hero)
    choice = rng.randrange(6)
    if choice == 0:
        slots["place"] = slots["place2"] = pick(rng, PLACES)
        return f"{slots['a_hero']} in {slots['place']}", slots
    topics = [f"{article(hero)} named {slots['name']}", article(hero), f"{article(hero)} and a {slots['thing']}"]
    return [*topics, slots["a_hero"], f"{slots['name']} and {slots['friend']}"][choice - 1], slots


# ---------------------------------------------------------------- one question, one answer


def ask_story(rng: Random) -> Turn:
    if rng.random() < 0.2:  # a topic without a hero: the thing that the story turns on
        slots = story_slots(rng)
        topic = pick(rng, ABSTRACT) if rng.random() < 0.5 else f"a {slots['thing']}"
        lead = f"Here is a story about {topic}.\n\n"
    else:
        (topic, slots), lead = about(rng), pick(rng, ["", "", "", "Here is a story.\n\n", "Of course!\n\n"])
    return fill(rng, ASK_STORY, {"topic": topic}), lead + story(rng, slots)


def small_talk(rng: Random) -> Turn:
    question, answer = SMALL_TALK[rng.randrange(len(SMALL_TALK))]
    choices = {"joke": JOKES, "colour": COLOURS, "food": FOODS, "hard": HARD}
    slots = {key: pick(rng, words) for key, words in choices.items()}
    return fill(rng, question, slots), fill(rng, answer, slots).strip()


def arithmetic(rng: Random) -> Turn:
    high = rng.choice((10, 10, 20, 50, 100))
    a, b = rng.randrange(high + 1), rng.randrange(high + 1)
    kind = rng.randrange(4)
    if kind == 0:
        a, b = max(a, b), min(a, b)
        sign, word, result = "-", "minus", a - b
    elif kind == 1:
        a, b = a % 13, b % 13
        sign, word, result = "*", "times", a * b
    else:
        sign, word, result = "+", "plus", a + b
    ask = fill(rng, "[What is {s}?|How much is {s}?|{s}|{s} =|Calculate {s}.|What's {s}?|What is {w}?]",
               {"s": rng.choice((f"{a} {sign} {b}", f"{a}{sign}{b}")), "w": f"{a} {word} {b}"})  # fmt: skip
    equation = f"{a} {sign} {b} = {result}"
    return ask, rng.choice((equation, equation, f"{result}", f"The answer is {result}."))


def fact(rng: Random) -> Turn:
    table, question, answer = FACTS[rng.randrange(len(FACTS))]
    key = pick(rng, list(table))
    slots = {"key": key.replace("_", " "), "value": table[key].replace("_", " ")}
    answer = fill(rng, answer, slots)
    return fill(rng, question, slots), answer[0].upper() + answer[1:]


def listing(rng: Random) -> Turn:
    group = pick(rng, list(GROUPS))
    count = rng.randrange(2, min(8, len(GROUPS[group])))
    words = rng.sample(GROUPS[group], count)
    number = pick(rng, [str(count), NUMBERS[count]])
    ask = fill(rng, "[List|Name|Give me|Write down|Tell me|Can you name] {n} {g}[.|]", {"n": number, "g": group})
    style = rng.randrange(3)
    if style == 0:
        return ask, "\n".join(f"{i}. {word}" for i, word in enumerate(words, 1))
    if style == 1:
        return ask, "\n".join(f"- {word}" for word in words)
    return f"{ask} Use commas." if rng.random() < 0.5 else ask, ", ".join(words[:-1]) + f" and {words[-1]}."


def counting(rng: Random) -> Turn:
    start, length = rng.choice((1, 1, 1, rng.randrange(50))), rng.randrange(3, 20)
    if rng.random() < 0.2:
        return f"Count down from {length} to 1.", ", ".join(str(n) for n in range(length, 0, -1))
    return f"Count from {start} to {start + length}.", ", ".join(str(n) for n in range(start, start + length + 1))


def poem(rng: Random) -> Turn:
    lines = [line.strip() for couplet in rng.sample(RHYMES, rng.randrange(1, 4)) for line in couplet.split("/")]
    topic = rng.choice((lines[0].split()[1], "nature", "the world"))
    return fill(rng, "[Write|Tell me|Give me] a [short |little |]poem[ about {t}|].", {"t": topic}), "\n".join(
        line[0].upper() + line[1:] + (",", ".")[i % 2] for i, line in enumerate(lines))  # fmt: skip


def copying(rng: Random) -> Turn:
    words = rng.sample(GIRLS + HEROES + FOODS + COLOURS + THINGS + CITIES, rng.randrange(1, 6))
    kind = rng.randrange(4)
    text = " ".join(words)
    if kind == 0:
        return f"{pick(rng, ['Repeat after me', 'Say this', 'Repeat'])}: {text}", text
    if kind == 1:
        return f"Spell {words[0]}.", "-".join(words[0].replace(" ", ""))
    if kind == 2:
        count = len(text.split())
        return f"How many words are there here: {text}?", f"There {'is' if count == 1 else 'are'} {count}."
    return f"Say {text}.", text


def reading(rng: Random) -> Turn:
    """Return a few facts, and a question (who, what, where) that one of the facts answers."""
    names = rng.sample(GIRLS + BOYS, rng.randrange(1, 4))
    facts = [(name, pick(rng, COLOURS), pick(rng, THINGS), pick(rng, PLACES)) for name in names]
    text = " ".join(f"{n} has {article(f'{c} {t}')}. {n} is at {p}." for n, c, t, p in facts)
    name, colour, thing, place = rng.choice(facts)
    question, answer = rng.choice((
        (f"What does {name} have?", f"{name} has {article(f'{colour} {thing}')}."),
        (f"Where is {name}?", f"{name} is at {place}."),
        (f"Who has {article(f'{colour} {thing}')}?", f"{name} has {article(f'{colour} {thing}')}."),
        (f"Who is at {place}?", f"{name} is at {place}."),
    ))  # fmt: skip
    return f"{text} {question}", answer


# ---------------------------------------------------------------- JSON

FIELDS: dict[str, Callable[[Random], object]] = {
    "name": lambda r: pick(r, GIRLS + BOYS), "age": lambda r: r.randrange(1, 99), "city": lambda r: pick(r, CITIES),
    "colour": lambda r: pick(r, COLOURS), "color": lambda r: pick(r, COLOURS), "job": lambda r: pick(r, JOBS),
    "hobby": lambda r: pick(r, HOBBIES), "hobbies": lambda r: r.sample(HOBBIES, r.randrange(1, 4)),
    "food": lambda r: pick(r, FOODS), "foods": lambda r: r.sample(FOODS, r.randrange(1, 4)),
    "id": lambda r: r.randrange(1000), "price": lambda r: r.randrange(1, 2000) / 100,
    "count": lambda r: r.randrange(20), "weather": lambda r: pick(r, WEATHERS),
    "temperature": lambda r: r.randrange(-10, 35), "happy": lambda r: r.random() < 0.5,
    "kind": lambda r: pick(r, HEROES), "item": lambda r: pick(r, THINGS),
    "items": lambda r: r.sample(THINGS, r.randrange(4)), "place": lambda r: pick(r, PLACES),
    "numbers": lambda r: [r.randrange(100) for _ in range(r.randrange(5))],
    "owner": lambda r: None if r.random() < 0.2 else pick(r, BOYS),
    "title": lambda r: f"The {pick(r, COLOURS).capitalize()} {pick(r, THINGS).title()}",
    "year": lambda r: r.randrange(1800, 2030), "tags": lambda r: r.sample(TRAITS, r.randrange(1, 4)),
    "done": lambda r: r.random() < 0.5, "trait": lambda r: pick(r, TRAITS),
}  # fmt: skip


def json_value(rng: Random, kind: str, depth: int) -> dict[str, object]:
    keys = KINDS[kind] if rng.random() < 0.75 else rng.sample(list(FIELDS), rng.randrange(1, 6))
    value = {key: FIELDS[key](rng) for key in keys}
    if depth > 1 and rng.random() < 0.5:
        inner = pick(rng, list(KINDS))
        nested = json_value(rng, inner, depth - 1)
        value[inner.replace(" ", "_")] = nested if rng.random() < 0.7 else [nested, json_value(rng, inner, 1)]
    return value


def dump(rng: Random, value: object) -> str:
    indent = 2 if rng.random() < 0.15 else None
    return json.dumps(value, indent=indent, separators=(",", ":") if indent is None and rng.random() < 0.1 else None)


def ask_json(rng: Random) -> Turn:
    kind = pick(rng, list(KINDS))
    value = json_value(rng, kind, 3)
    keys = ", ".join(value)
    style = rng.randrange(4)
    if style == 0:
        ask = fill(rng, "[Write|Give me|Make|Return] a JSON object for {k}[.|]", {"k": article(kind)})
    elif style == 1:
        ask = fill(rng, "[Describe|Show] {k} [as|in] JSON[.|]", {"k": article(kind)})
    elif style == 2:
        ask = fill(rng, "[Return|Write|Give me] JSON with the keys {k}[.|]", {"k": keys})
    else:
        value = {key: field for key, field in value.items() if type(field) in (str, int)} or {"name": pick(rng, GIRLS)}
        ask = "Turn this into JSON: " + ", ".join(f"{key} {field}" for key, field in value.items())
    return ask, dump(rng, value)


def json_document(rng: Random) -> str:
    kind = pick(rng, list(KINDS))
    lead = pick(rng, ["", f"JSON for {article(kind)}:\n", f"{kind.capitalize()}: ", "JSON:\n", "```json\n"])
    return lead + dump(rng, json_value(rng, kind, 3)) + ("\n```" if lead.startswith("```") else "")


# ---------------------------------------------------------------- conversations

TURNS: list[tuple[Callable[[Random], Turn], float]] = [
    (ask_story, 3), (small_talk, 2.5), (arithmetic, 2.5), (fact, 2), (listing, 2), (counting, 0.6), (poem, 0.6),
    (copying, 0.8), (reading, 2), (ask_json, 3.5),
]  # fmt: skip
CARELESS = {ask_story, small_talk, arithmetic, fact, listing, counting, poem}


def render(messages: list[tuple[str, str]]) -> str:
    """Render a chat like chat_template.jinja."""
    return "".join(f"<|{role}|>\n{content}{END_OF_TURN}\n" for role, content in messages)


def any_turn(rng: Random) -> Turn:
    makers, weights = zip(*TURNS, strict=True)
    maker: Callable[[Random], Turn] = rng.choices(makers, weights)[0]
    ask, answer = maker(rng)
    if maker in CARELESS and rng.random() < 0.2:  # people do not always type capitals and full stops
        ask = ask.lower().rstrip(".?!")
    return ask, answer


def remembering(rng: Random) -> list[Turn]:
    """Return a chat whose user says something at the start and asks for it at the end."""
    name, food, colour = pick(rng, GIRLS + BOYS), pick(rng, FOODS), pick(rng, COLOURS)
    says, question, answer = rng.choice((
        (f"My name is {name}.", "What is my name?", f"Your name is {name}."),
        (f"Hello, I am {name}.", "Who am I?", f"You are {name}."),
        (f"I like {food}.", "What do I like?", f"You like {food}."),
        (f"My favourite colour is {colour}.", "What is my favourite colour?", f"Your favourite colour is {colour}."),
    ))  # fmt: skip
    reply = f"Nice to meet you, {name}!"
    if name not in says:
        reply = pick(rng, ["That is nice.", "I will remember that.", "Good to know!"])
    return [(says, reply), *(any_turn(rng) for _ in range(rng.randrange(3))), (question, answer)]


def persona(rng: Random) -> tuple[str, list[Turn]]:
    """Return a chat with a system message that changes the answers."""
    if rng.random() < 0.5:
        name = pick(rng, GIRLS + BOYS)
        asks = fill(rng, "[What is your name?|Who are you?]", {})
        system = f"Your name is {name}." + pick(rng, ["", " You are a friendly assistant."])
        return system, [(asks, f"My name is {name}."), any_turn(rng)]
    question, answer = fact(rng)
    if rng.random() < 0.5:
        return "Always answer in JSON.", [(question, json.dumps({"answer": answer}))]
    return "Answer in one word.", [(question, answer.rstrip(".").split()[-1].capitalize() + ".")]


def conversation(rng: Random) -> str:
    kind = rng.random()
    system = pick(rng, SYSTEMS).strip() if rng.random() < 0.3 else ""
    if kind < 0.12:
        turns = remembering(rng)
    elif kind < 0.2:
        system, turns = persona(rng)
    else:
        turns = [any_turn(rng) for _ in range(rng.choice((1, 1, 1, 1, 1, 2, 2, 3, 5, 9)))]
    messages = [("system", system)] if system else []
    return render(messages + [message for ask, answer in turns for message in (("user", ask), ("assistant", answer))])


def documents(seed: int) -> Iterator[str]:
    """Yield documents endlessly, without the separator between documents."""
    rng = Random(seed)
    while True:
        kind = rng.random()
        yield conversation(rng) if kind < 0.72 else story(rng, story_slots(rng)) if kind < 0.88 else json_document(rng)
